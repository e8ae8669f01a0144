"""Runs planted defects against the vectors: which cases show them, at which dtypes."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from conformance.defects.defect import Defect
from conformance.defects.record import THEN
from conformance.judging.verdict import FAILURES
from conformance.names import DTYPES
from conformance.running.messages import Question
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

ENOUGH = 3
"""Kills after which a dtype is done with."""


@dataclass(frozen=True)
class Kill:
    """What became of one defect: which cases show it."""

    defect: Defect
    policy: str
    cases: Mapping[str, tuple[str, ...]]  # dtype -> cases as on record, in the order found; empty = survived

    @property
    def problems(self) -> list[str]:
        """What is not as the bank says."""
        found = []
        for dtype, cases in self.cases.items():
            excuse = self.defect.excuse(dtype, self.policy)
            if cases and excuse:
                found.append(
                    f"{self.defect.id} is shown at {dtype} by {cases[0]}, but the bank says: {excuse}"
                )
            if not cases and not excuse:
                found.append(f"{self.defect.id} survives at {dtype}")
        return found


def kill(
    defect: Defect,
    cases: Sequence[Case],
    dtypes: Iterable[str] = DTYPES,
    policy: str = "fused",
    enough: int | None = ENOUGH,
) -> Kill:
    """Runs one defect until enough cases show it at each dtype; all of them if `enough` is None.

    Cases that cover a requirement which the defect violates come first. Those that do not use the features
    it needs are run only if it is said to be equivalent. Each is asked alone, of a new target; where none shows
    a defect with state so, they are asked one after another.
    """
    chosen = ordered(defect, cases)
    return Kill(
        defect, policy, {dtype: tuple(killers(defect, chosen, dtype, policy, enough)) for dtype in dtypes}
    )


def ordered(defect: Defect, cases: Sequence[Case]) -> list[Case]:
    """The cases that may show a defect, the likeliest and smallest first."""

    def rank(case: Case) -> tuple[bool, int]:
        return not set(defect.violates) & set(case.covers), case.elements

    usable = (case for case in cases if defect.equivalent or set(defect.features) <= set(case.features))
    return sorted(usable, key=rank)


def killers(defect: Defect, cases: Iterable[Case], dtype: str, policy: str, enough: int | None) -> list[str]:
    """What shows a defect at a dtype, as on record: IDs of cases, or of several in the order asked."""
    judged = [case for case in cases if case.judged(dtype, policy)]
    found: list[str] = []
    for case in judged:
        if shown(defect, (case,), dtype, policy):
            found.append(case.id)
            if len(found) == enough:
                break
    if not found and defect.stateful:
        return [THEN.join(case.id for case in asked) for asked in _together(defect, judged, dtype, policy)]
    return found


def shown(defect: Defect, asked: Iterable[Case], dtype: str, policy: str) -> bool:
    """Whether the last of some cases shows a defect, all of them asked of one new target in this order."""
    return _wrong(defect, asked, dtype, policy)[-1]


def _wrong(defect: Defect, asked: Iterable[Case], dtype: str, policy: str) -> list[bool]:
    """Which cases are answered wrongly, one after another by one new target."""
    asker = InProcess(adopt(defect.implementation(), defect.id))
    with redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
        return [answered(Question(case, dtype), policy, asker).verdict in FAILURES for case in asked]


def _together(defect: Defect, cases: Sequence[Case], dtype: str, policy: str) -> Iterator[tuple[Case, ...]]:
    """The first case that shows a defect after others, with as few of those as will do."""
    wrong = _wrong(defect, cases, dtype, policy) if cases else []
    if True not in wrong:
        return
    last = wrong.index(True)
    before = list(cases[:last])
    for case in cases[:last]:
        fewer = [other for other in before if other is not case]
        if shown(defect, (*fewer, cases[last]), dtype, policy):
            before = fewer
    yield (*before, cases[last])


def everywhere(defect: Defect) -> tuple[str, ...]:
    """Every dtype."""
    return DTYPES


def excused(defect: Defect) -> tuple[str, ...]:
    """The dtypes at which the bank says that nothing need show it."""
    return tuple(dtype for dtype in DTYPES if dtype not in defect.observable)


def matrix(
    defects: Sequence[Defect],
    policy: str = "fused",
    enough: int | None = ENOUGH,
    processes: int = 2,
    dtypes: Callable[[Defect], Sequence[str]] = everywhere,
    only: frozenset[str] | None = None,
) -> Iterator[Kill]:
    """Every defect at every dtype, or at those of a function, in the order given; of `only` some cases by ID."""
    with get_context("spawn").Pool(processes, _load, (policy, enough, only)) as pool:
        work = [(defect.id, tuple(dtypes(defect))) for defect in defects]
        found = pool.imap(_kill, work, chunksize=4)
        yield from (Kill(defect, policy, cases) for defect, cases in zip(defects, found, strict=True))


_shared: dict[str, tuple[Mapping[str, Defect], Sequence[Case], str, int | None]] = {}
"""What each process of the pool reads once."""


def _load(policy: str, enough: int | None, only: frozenset[str] | None) -> None:
    from conformance.defects.bank import DEFECTS

    cases = [case for case in load_vectors().cases if only is None or case.id in only]
    _shared["all"] = {d.id: d for d in DEFECTS}, cases, policy, enough


def _kill(work: tuple[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    name, dtypes = work
    defects, cases, policy, enough = _shared["all"]
    return kill(defects[name], cases, dtypes, policy, enough).cases
