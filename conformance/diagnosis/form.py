"""Results of a wrong shape that is the right one with its axes treated in one way, and of a wrong dtype."""

import re
from collections.abc import Callable, Mapping, Sequence

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Note
from conformance.judging.judge import dtype_problem
from conformance.names import DTYPES

Shape = tuple[int, ...]
TOLD = re.compile(r"(?P<name>.+) has dtype (?P<got>\w+), wanted .+ \((?P<rule>[\w-]+)\)")
"""What the judge says of a dtype."""
ENOUGH = 2
"""Cases that show it."""
MOST = 0.8
"""The share of the results of a wrong shape that one way has to give."""


def _without_ones(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


def _swapped(shape: Shape) -> Shape:
    *axes, heads, rows, width = shape if len(shape) > 2 else (0, 0, 0)
    return (*axes, rows, heads, width)


WAYS: Mapping[str, Callable[[Shape], Shape]] = {
    "has lost every axis of length 1": _without_ones,
    "has its axes of heads and queries the other way round": _swapped,
    "has an axis of length 1 too many, at its end": lambda shape: (*shape, 1),
    "has an axis of length 1 too many, in front": lambda shape: (1, *shape),
    "has all its axes but the last in one": lambda shape: (_product(shape[:-1]), *shape[-1:]),
}


def _product(shape: Shape) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def by_form(failures: Sequence[Failure]) -> list[Note]:
    """What is said of the shapes of one output where most wrong ones are made in the same way."""
    wrong: dict[str, list[tuple[Failure, Shape, Shape]]] = {}
    for failure in failures:
        for name, array in (failure.outputs or {}).items():
            golden = failure.case.expected.get(name)
            if golden is not None and golden.shape != array.shape:
                wrong.setdefault(failure.case.label(name), []).append((failure, golden.shape, array.shape))
    found = [note for name, those in wrong.items() if (note := _note(name, those)) is not None]
    return [*found, *_by_dtype(failures)]


def _by_dtype(failures: Sequence[Failure]) -> list[Note]:
    """What is said of a result that has the right shape and another dtype."""
    wrong: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in failures:
        outputs = failure.outputs or {}
        whole = failure.case.expected.keys() <= outputs.keys() and not failure.case.raises
        told = TOLD.fullmatch(dtype_problem(failure.case, failure.dtype, outputs)) if whole else None
        if told:
            wrong.setdefault((told["name"], told["got"], told["rule"]), []).append(failure)
    return [
        Note(
            "dtype",
            f"Your {name} comes back in {got} where the call has {_joined(those)}",
            (rule,),
            tuple(those),
        )
        for (name, got, rule), those in wrong.items()
        if len({f.case.id for f in those}) >= ENOUGH
    ]


def _joined(failures: Sequence[Failure]) -> str:
    """Their dtypes, in words."""
    return " or ".join(sorted({f.dtype for f in failures}, key=DTYPES.index))


def _note(name: str, wrong: Sequence[tuple[Failure, Shape, Shape]]) -> Note | None:
    for said, way in WAYS.items():
        told = tuple(failure for failure, wanted, got in wrong if way(wanted) == got)
        if len({f.case.id for f in told}) >= ENOUGH and len(told) >= MOST * len(wrong):
            return Note("shape", f"Your {name} {said}", ("SHAPE-2",), told)
    return None
