"""Two mistakes at once, where no single one explains most of what fails."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Finding
from conformance.diagnosis.model import Model, collide
from conformance.diagnosis.weigh import LARGE, Bench, telling

MOST = 0.8
"""The share of the failing rows that one mistake has to explain, so that two are not looked for."""
MORE = 0.1
"""The share of the failing rows that two mistakes have to explain beyond the best single one."""
SUSPECTS = 120
TRIED = 2
"""Rows that every pair is tried on."""


def pairs(bench: Bench, found: Sequence[Finding], every: Sequence[Model], until: float) -> list[Finding]:
    """The findings, with those in it that fit together made one, and with pairs for what is unexplained."""
    failures, singles = bench.evidence.failures, list(found)
    every = [model for model in every if model.usual]
    if max((f.explains for f in singles), default=0) >= MOST * len(failures):
        return singles
    left = [f for f in failures if f.size <= LARGE and not any(f in s.explained for s in singles)]
    # what breaks in several ways at once is tried last: its models collide with most others
    rows = left[:TRIED] if len({f.case.id for f in left}) >= 2 else []
    best = max(
        (find(bench, pair) for pair in _likely(bench, singles, every, rows, until)),
        key=lambda finding: finding.explains - 2 * finding.contradicted,
        default=None,
    )
    most = max((f.explains for f in singles), default=1)
    if best is None or best.explains < most + max(2, MORE * len(failures)):
        return singles
    best = replace(best, model=_by_weight(bench, best.model))
    explained = set(map(id, best.explained))
    return [best, *(f for f in singles if not explained >= set(map(id, f.explained)))]


def _by_weight(bench: Bench, pair: Model) -> Model:
    """The mistake that explains more by itself comes first."""
    alone = {d.id: sum(bench.explains(Model((d,)), f) for f in bench.evidence.failures) for d in pair.defects}
    return Model(tuple(sorted(pair.defects, key=lambda d: -alone[d.id])))


def _likely(
    bench: Bench, found: Sequence[Finding], every: Sequence[Model], rows: Sequence[Failure], until: float
) -> Iterator[Model]:
    """Pairs that reproduce what is unexplained: of findings, of a finding and any other, of any two suspects."""
    for number, one in enumerate(found):
        for other in found[:number]:
            yield from _together(one.model, other.model)
    firsts = [finding.model for finding in found[:3]]
    if not rows:
        return
    tries = ((one, other) for one in firsts for other in every)
    yield from _fitting(bench, tries, rows, until)
    if not firsts:
        some = suspects(bench, every, rows, until)
        yield from _fitting(bench, ((a, b) for n, a in enumerate(some) for b in some[:n]), rows, until)


def _fitting(
    bench: Bench, tries: Iterator[tuple[Model, Model]], rows: Sequence[Failure], until: float
) -> Iterator[Model]:
    for one, other in tries:
        if time.process_time() > until:
            return
        for pair in _together(one, other):
            if all(bench.explains(pair, failure) for failure in rows):
                yield pair


def _together(one: Model, other: Model) -> Iterator[Model]:
    (a,), (b,) = one.defects, other.defects
    if a is not b and not collide(a, b):
        yield Model((a, b))


def suspects(bench: Bench, every: Sequence[Model], rows: Sequence[Failure], until: float) -> list[Model]:
    """Models that fail these rows too, in another way, and nothing of what passes."""
    found = []
    for model in every:
        if all(bench.word(model, failure) == "other" for failure in rows):
            passes = telling(model, bench.evidence.passes)[:3]
            if not any(bench.fails(model, asked) for asked in passes):
                found.append(model)
        if len(found) == SUSPECTS or time.process_time() > until:
            break
    return found


def find(bench: Bench, model: Model) -> Finding:
    """What a model explains of everything."""
    passes = telling(model, bench.evidence.passes)
    return Finding(
        model,
        tuple(f for f in bench.evidence.failures if bench.explains(model, f)),
        bench.evidence.failed,
        (),
        sum(bench.fails(model, asked) for asked in passes),
        len(passes),
    )
