"""The search: what failing rows have in common, and which known mistakes reproduce their answers."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from conformance.defects.defect import Defect
from conformance.diagnosis.failing import Asked, Evidence, Failure, evidence
from conformance.diagnosis.finding import Diagnosed, Note
from conformance.diagnosis.form import by_form
from conformance.diagnosis.library import by_library
from conformance.diagnosis.memory import by_memory
from conformance.diagnosis.model import Model
from conformance.diagnosis.parts import parts
from conformance.diagnosis.places import by_places
from conformance.diagnosis.plausible import FEWEST
from conformance.diagnosis.relation import by_relation
from conformance.diagnosis.results import by_results
from conformance.diagnosis.returned import by_returned
from conformance.diagnosis.rounds import ROUNDS, Search
from conformance.diagnosis.shared import forget
from conformance.diagnosis.size import by_size
from conformance.diagnosis.split import Split, splits
from conformance.judging.verdict import Row
from conformance.vectors.case import Array, Case

SECONDS = 9.0
"""How long to look for more: of this process's time, so that a busy machine changes nothing."""
ALL = 0.8
"""The share of what is told by its size that a model has to reproduce to take its place."""
TOLD = 0.5
"""The share of what is told by notes that a model of the same rows has to reproduce to be named beside them."""


def diagnose(
    rows: Iterable[Row],
    cases: Iterable[Case],
    policy: str,
    defects: Iterable[Defect] | None = None,
    seconds: float = SECONDS,
    packages: Iterable[str] = (),
) -> Diagnosed:
    """Says what the failing rows of a run have in common, and which known mistakes reproduce their wrong answers.

    Args:
        rows: of the whole run, those that pass as well: they speak against a model that would fail them.
        cases: those of the vectors.
        policy: what the rows were judged by.
        defects: the bank by default.
        seconds: of processor time, after which no further round begins.
        packages: libraries that the target uses, whose known deviations are looked for first.
    """
    rows, cases = list(rows), list(cases)
    seen = evidence(rows, cases)
    with np.errstate(all="ignore"):
        results = by_results(seen.failures, seen.passes, policy)
        split = splits(rows, cases, [place for each in results for place in each.places])
    if not seen.failures:
        return Diagnosed((), seen.failed, 0, splits=split)
    notes = [*by_library(seen.failures, seen.passes, packages), *by_memory(seen.failures)]
    notes += [*by_returned(seen.failures), *by_form(seen.failures)]
    with np.errstate(all="ignore"):
        sized = by_size(seen.failures, seen.passes, policy)
        sized += by_relation(seen.failures, policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the models, which are wrong on purpose
        try:
            seen = replace(seen, passes=tuple(f for f in seen.passes if f.dtype in _dtypes(seen, split)))
            place = by_places(seen.failures, _under(seen.passes, split), policy)
            found = _search(seen, policy, models(defects), seconds, split, [*notes, *sized])
        finally:
            forget()
    # what a model gives number by number is more than what its size tells
    exact = {f for finding in found.findings if not finding.contradicted for f in finding.explained}
    sized = [note for note in sized if sum(f in exact for f in note.explained) < ALL * len(note.explained)]
    told = {f for note in (*notes, *sized) for f in note.explained}
    findings = tuple(
        f
        for f in found.findings
        if (not set(f.explained) <= told or f.explains >= TOLD * len(told))
        and (not f.contradicted or f.explains >= FEWEST * len(seen.failures))
    )
    left = tuple(f for f in found.left if f not in told)
    places = (place,) if place else ()
    return replace(
        found,
        findings=findings,
        splits=split,
        places=places,
        results=results,
        notes=(*notes, *sized),
        left=left,
    )


def _under(passes: Sequence[Asked], split: Sequence[Split]) -> Sequence[Asked]:
    """The passing rows of a condition that holds for all that fails; all of them where there is none."""
    if len(split) != 1 or split[0].failing_elsewhere:
        return passes
    return [asked for asked in passes if (asked.case.id, asked.dtype) in split[0].rows]


def _search(
    seen: Evidence,
    policy: str,
    every: Sequence[Model],
    seconds: float,
    split: tuple[Split, ...],
    notes: Sequence[Note],
) -> Diagnosed:
    """What models reproduce: of wrong numbers and of exceptions, each apart, so that neither hides the other."""
    begun = time.process_time()
    told = {f for note in notes for f in note.explained}
    numbers = [f for f in seen.failures if not f.raised]
    apart = [
        # what is told by its size is asked of models of the usual numbers only, and once
        (tuple(f for f in numbers if f not in told), every, ROUNDS),
        (tuple(f for f in numbers if f in told), tuple(m for m in every if m.usual), 1),
        (tuple(f for f in seen.failures if f.raised), tuple(m for m in every if m.usual), ROUNDS),
    ]
    parts = []
    for failures, some, rounds in apart:
        if failures:
            search = Search(replace(seen, failures=failures), policy, some, begun + seconds, split, rounds)
            parts.append(search.run())
    findings = sorted((f for part in parts for f in part.findings), key=lambda f: (-f.explains, -f.worth))
    return replace(
        parts[0],
        findings=tuple(replace(f, of=seen.failed) for f in findings),
        failed=seen.failed,
        compared=len(seen.failures),
        single=next((part.single for part in parts if part.single), ()),
        hurried=any(part.hurried for part in parts),
        cases=len({f.case.id for f in seen.failures}),
        raised=all(f.raised for f in seen.failures),
        left=tuple(f for part in parts for f in part.left),
        numbers=len(numbers),
    )


def diagnose_one(
    case: Case, dtype: str, outputs: Mapping[str, Array], policy: str, seconds: float = SECONDS
) -> tuple[Model, ...]:
    """The models that give the same wrong answer to one call, the likeliest first: it alone cannot tell them apart."""
    seen = Evidence((Failure(case, dtype, outputs=outputs),), (), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Search(seen, policy, models(), time.process_time() + seconds).run().single
        finally:
            forget()


def _dtypes(seen: Evidence, split: Iterable[Split]) -> set[str]:
    """Those at which passing rows say something: not those that a split leaves out, since no model knows of dtypes."""
    whole = [each for each in split if not each.failing_elsewhere]
    asked = [dtype for each in whole for _, dtype in each.rows] or [f.dtype for f in seen.passes]
    return {*asked, *(f.dtype for f in seen.failures)}


def models(defects: Iterable[Defect] | None = None) -> tuple[Model, ...]:
    """A model for each defect that changes a result, and for each number that is likely in it."""
    if defects is None:
        from conformance.defects.bank import DEFECTS

        defects = DEFECTS
    wrong = [defect for defect in defects if not defect.equivalent]
    every = [each for defect in wrong for each in (*defect.family, *parts(defect))]
    return tuple(sorted(map(Model, zip(every)), key=lambda model: not model.usual))
