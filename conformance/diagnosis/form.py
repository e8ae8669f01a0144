"""Results of a wrong shape that is the right one with its axes treated in one way, whatever the numbers."""

from collections.abc import Callable, Mapping, Sequence

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Note

Shape = tuple[int, ...]
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
    return [note for name, those in wrong.items() if (note := _note(name, those)) is not None]


def _note(name: str, wrong: Sequence[tuple[Failure, Shape, Shape]]) -> Note | None:
    for said, way in WAYS.items():
        told = tuple(failure for failure, wanted, got in wrong if way(wanted) == got)
        if len({f.case.id for f in told}) >= ENOUGH and len(told) >= MOST * len(wrong):
            return Note("shape", f"Your {name} {said}", ("SHAPE-2",), told)
    return None
