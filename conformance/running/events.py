"""What a run tells whoever listens, as it goes."""

from dataclasses import dataclass

from conformance.judging.verdict import Row
from conformance.running.messages import Hello


@dataclass(frozen=True)
class Started:
    """The first event of a run."""

    hello: Hello
    source: str
    accuracy: str
    total: int  # rows of the run
    done: int = 0  # how many of them will not follow, since an earlier run has them
    varied: frozenset[tuple[str, str]] = (
        frozenset()
    )  # those (case ID, dtype) that have a variant asked as well


@dataclass(frozen=True)
class GaveUp:
    """The last event of a run that ended early: why, and how many rows were not asked."""

    why: str
    left: int


@dataclass(frozen=True)
class Noticed:
    """What wrong answers have in common, said before the first row of them that follows."""

    what: str


Event = Started | Row | Noticed | GaveUp
