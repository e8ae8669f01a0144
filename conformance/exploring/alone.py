"""Failing rows asked for in new processes: which of them fail without the calls of a run before them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.diagnosis.failing import evidence
from conformance.diagnosis.places import by_places
from conformance.judging.verdict import Row
from conformance.running.messages import Question
from conformance.running.runner import Asker, answered_once
from conformance.vectors.case import Array, Case

MOST = 16
"""Rows that are asked."""
OTHERS = {
    "mask": "another mask",
    "attn_bias": "another bias",
    "kv_lengths": "other lengths",
    "q_offset": "other offsets",
}
WALL = 30.0
"""Seconds for all of them: a target may wait, or compute elsewhere."""
ENOUGH = 4
"""Rows that fail, each of which takes a new process."""


@dataclass(frozen=True)
class Alone:
    """What some failing rows give that are asked in new processes."""

    failing: tuple[Row, ...]
    asked: int
    place: str  # which rows of their results are wrong, in a sentence

    @property
    def sentence(self) -> str:
        """How many fail, and where."""
        if not self.asked:
            return ""
        told = f" {self.place.replace('In the failing calls', 'In these')}" if self.place else ""
        return f"{len(self.failing)} of {self.asked} other calls fail without those before them.{told}"


def alone(
    rows: Sequence[Row], cases: Mapping[str, Case], policy: str, start: Callable[[], Asker], until: float
) -> Alone:
    """Asks for failing rows of many features, none behind one that fails, until some fail."""
    failing, asked, late = list[Row](), 0, time.monotonic() + WALL
    if not rows:
        return Alone((), 0, "")
    asker = start()
    try:
        finite = sorted(_various(rows), key=lambda row: not _finite(cases[row.case]))
        for row in finite:  # NaN is what a mistake may leave everywhere
            if (
                asked == MOST
                or len(failing) == ENOUGH
                or time.process_time() > until
                or time.monotonic() > late
            ):
                break
            asked += 1
            question = Question(cases[row.case], row.dtype)
            if answered_once(question, policy, asker).verdict != row.judged:
                continue
            asker.close()
            asker = start()
            again = answered_once(question, policy, asker)  # the ones before may be what it fails behind
            if again.verdict == row.judged:
                failing.append(again)
                asker.close()
                asker = start()
    except BaseException:
        asker.kill()
        raise
    asker.close()
    seen = evidence(failing, cases.values())
    with np.errstate(all="ignore"):
        place = by_places(seen.failures, (), policy)
    return Alone(tuple(failing), asked, place.sentence if place else "")


def _finite(case: Case) -> bool:
    return all(np.isfinite(case.inputs[name]).all() for name in ("query", "key", "value"))


def _various(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows each with a feature that none before it has; then others, each of another case."""
    told, cases, rest = set[str](), set[str](), list[Row]()
    for row in rows:
        if row.case in cases:
            continue
        cases.add(row.case)
        if told.issuperset(row.features):
            rest.append(row)
        else:
            told.update(row.features)
            yield row
    yield from rest


def behind(row: Row, case: Case, policy: str, start: Callable[[], Asker], until: float) -> str:
    """What a call before it of the same shapes has to hold otherwise, so that the row fails, in words; or nothing."""
    late = time.monotonic() + WALL
    for words, inputs in _otherwise(case):
        if time.process_time() > until or time.monotonic() > late:
            break
        asker = start()
        try:
            asker.ask(Question(replace(case, inputs=inputs, seeded={}), row.dtype))
            again = answered_once(Question(case, row.dtype), policy, asker)
        except BaseException:
            asker.kill()
            raise
        asker.close()
        if again.verdict == row.judged:
            return words
    return ""


def _otherwise(case: Case) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """The operands of a call, one of its options with other numbers; at last all of query, key and value."""
    given = {name: case.inputs[name] for name in case.inputs}
    for name, words in OTHERS.items():
        if name in given and given[name].size:
            x = given[name]
            other = (
                ~x if x.dtype.kind == "b" else np.maximum(x - 1, 0) if x.dtype.kind in "iu" else x[..., ::-1]
            )
            yield words, {**given, name: np.asarray(other, x.dtype)}
    yield "other numbers", {**given, **{name: given[name][..., ::-1] for name in ("query", "key", "value")}}
