"""The rows of a run as evidence: what was wrong and how, and what was right."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.running.again import unsteady
from conformance.running.protocol import ProtocolError, decode_array
from conformance.vectors.case import Array, Case


@dataclass(frozen=True, eq=False)
class Asked:
    """One (case, dtype) that the target answered."""

    case: Case
    dtype: str

    @property
    def size(self) -> int:
        """Elements that go in, which is what a call costs."""
        return self.case.elements

    @property
    def order(self) -> tuple[int, int, str]:
        """The most precise and smallest first."""
        return DTYPES.index(self.dtype), self.size, self.case.id


A = TypeVar("A", bound=Asked)


@dataclass(frozen=True, eq=False)  # one is itself alone: its arrays have no single answer to ==
class Failure(Asked):
    """A wrong answer: its outputs, or that it raised, or what was wrong with the call itself."""

    raised: bool = False
    message: str = ""  # of a call whose outputs could not be judged
    said: str = ""  # what its row says, of a call that raised as well
    outputs: Mapping[str, Array] | None = None
    unsteady: bool = False  # whether it gave another answer when it was asked again


@dataclass(frozen=True)
class Evidence:
    """What a run shows, the most precise and smallest first."""

    failures: tuple[Failure, ...]
    passes: tuple[Asked, ...]
    unseen: int  # failing rows that show nothing to compare: a crash, a timeout, an answer too large to keep

    @property
    def failed(self) -> int:
        """Every failing row."""
        return len(self.failures) + self.unseen


def evidence(rows: Iterable[Row], cases: Iterable[Case]) -> Evidence:
    """Sorts the rows of a run into what is wrong and what is right; unsupported ones are neither."""
    known = {case.id: case for case in cases}
    failures, passes, unseen = [], [], 0
    for row in rows:
        case = known.get(row.case)
        if case is None or not row.executed:
            continue
        if not row.failed:
            passes.append(Asked(case, row.dtype))
        elif (failure := _failure(row, case)) is not None:
            failures.append(failure)
        else:
            unseen += 1
    return Evidence(tuple(_ordered(failures)), tuple(_ordered(passes)), unseen)


def _ordered(asked: Sequence[A]) -> list[A]:
    return sorted(asked, key=lambda each: each.order)


def _failure(row: Row, case: Case) -> Failure | None:
    """What a failing row shows; None where it shows nothing that a model could reproduce."""
    if row.judged == "error":
        return Failure(case, row.dtype, raised=True, said=row.message)
    if row.judged != "fail" or row.got_left_out:
        return None
    if not row.got:
        return Failure(case, row.dtype, message=row.message, said=row.message)
    try:
        outputs = {
            got.output: decode_array(
                got.output, {"dtype": got.dtype, "shape": list(got.shape), "data": got.data}
            )
            for got in row.got
        }
    except (ProtocolError, KeyError):
        return None
    return Failure(case, row.dtype, outputs=outputs, unsteady=unsteady(row.message))
