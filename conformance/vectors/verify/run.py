"""Verifies a set of vectors over several processes, and adds up what was certified."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from conformance.vectors.case import Case


@dataclass
class Verified:
    """What was proved of a chapter."""

    cases: int = 0
    certified: int = 0  # elements, by the oracle
    compared: int = 0  # by the second reference
    related: int = 0  # by relations
    differences: list[str] = field(default_factory=list)

    def add(self, other: "Verified") -> None:
        """Takes in another part."""
        self.cases += other.cases
        self.certified += other.certified
        self.compared += other.compared
        self.related += other.related
        self.differences += other.differences


def verify(cases: Sequence[Case], processes: int) -> Iterator[tuple[str, Verified]]:
    """Chapter and result of each case, as they are ready, in the order of the cases.

    Raises:
        ModuleNotFoundError: python-flint or mpmath is not installed.
    """
    from conformance.vectors.verify import agreement, derivation, metamorphic  # noqa: F401 -- said before a pool

    asked = [case for case in cases if not case.raises]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for case, found in zip(asked, pool.map(_verified, asked, chunksize=4), strict=True):
            yield case.chapter, found


def _verified(case: Case) -> Verified:
    from conformance.vectors.verify.agreement import compared
    from conformance.vectors.verify.derivation import derived
    from conformance.vectors.verify.metamorphic import related

    certified, wrong = derived(case)
    agreed, off = compared(case)
    equal, broken = related(case)
    return Verified(1, certified, agreed, equal, [*wrong, *off, *broken])
