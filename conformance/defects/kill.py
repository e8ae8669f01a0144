"""Runs planted defects against the vectors: which cases show them, at which dtypes."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from conformance.defects.defect import Defect
from conformance.judging.verdict import FAILURES
from conformance.names import DTYPES
from conformance.running.answer import Question
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
    cases: Mapping[str, tuple[str, ...]]  # dtype -> case IDs, in the order they were run; empty = survived

    @property
    def problems(self) -> list[str]:
        """What is not as the record says."""
        found = []
        for dtype, cases in self.cases.items():
            excuse = self.defect.excuse(dtype, self.policy)
            if cases and excuse:
                found.append(
                    f"{self.defect.id} is shown at {dtype} by {cases[0]}, but the record says: {excuse}"
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
    it needs are run only if it is said to be equivalent.
    """
    chosen = ordered(defect, cases)
    return Kill(
        defect, policy, {dtype: tuple(killers(defect, chosen, dtype, policy, enough)) for dtype in dtypes}
    )


def ordered(defect: Defect, cases: Sequence[Case]) -> list[Case]:
    """The cases that may show a defect, the likeliest and smallest first."""

    def rank(case: Case) -> tuple[bool, int]:
        return not set(defect.violates) & set(case.covers), sum(x.size for x in case.inputs.values())

    usable = (case for case in cases if defect.equivalent or set(defect.features) <= set(case.features))
    return sorted(usable, key=rank)


def killers(
    defect: Defect, cases: Iterable[Case], dtype: str, policy: str, enough: int | None
) -> Iterator[str]:
    """The IDs of the cases that show a defect at a dtype."""
    asker = InProcess(adopt(defect.implementation(), defect.id))
    found = 0
    for case in cases:
        if not case.judged(dtype, policy):
            continue
        with redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
            row = answered(Question(case, dtype), policy, asker)
        if row.verdict in FAILURES:
            yield case.id
            found += 1
            if found == enough:
                return


def matrix(
    defects: Sequence[Defect], policy: str = "fused", enough: int | None = ENOUGH, processes: int = 2
) -> Iterator[Kill]:
    """Every defect at every dtype, in the order given."""
    with get_context("spawn").Pool(processes, _load, (policy, enough)) as pool:
        yield from (
            Kill(defect, policy, cases)
            for defect, cases in zip(
                defects, pool.imap(_kill, [d.id for d in defects], chunksize=4), strict=True
            )
        )


_shared: dict[str, tuple[Mapping[str, Defect], Sequence[Case], str, int | None]] = {}
"""What each process of the pool reads once."""


def _load(policy: str, enough: int | None) -> None:
    from conformance.defects.bank import DEFECTS

    _shared["all"] = {d.id: d for d in DEFECTS}, load_vectors().cases, policy, enough


def _kill(name: str) -> Mapping[str, tuple[str, ...]]:
    defects, cases, policy, enough = _shared["all"]
    return kill(defects[name], cases, policy=policy, enough=enough).cases
