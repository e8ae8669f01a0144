"""A call in which next to nothing of one operand is another: what a light fingerprint does not tell apart (IND-4).

Two numbers in the middle change places, so that sums, ends and shapes stay what they are; where none differ, one
number becomes another. The call stays a right one, and no row loses its last visible key.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.names import PAGED
from conformance.vectors.case import Array, Case

INTEGERS = ("q_starts", "kv_starts", "page_table", "slots")
"""Operands of which another number may be another kind of call, or a wrong one."""


@dataclass(frozen=True)
class Changed:
    """A call beside another one, and in words what differs."""

    case: Case
    words: str


def changed(case: Case, name: str, draw: random.Random) -> Changed | None:
    """The case with one operand changed; None where that cannot be without another kind of call."""
    if name in INTEGERS or (name == "kv_lengths" and case.operation == PAGED):
        return None
    array = case.inputs[name]
    for first, second in _neighbours(array, draw):
        if _differ(array[first], array[second]):
            other = array.copy()
            other[first], other[second] = array[second], array[first]
            return _made(
                case, name, other, f"{_at(name, first)} and {_at(name, second)} stood the other way round"
            )
    place = tuple(draw.randrange(size) for size in array.shape) if array.size else None
    number = None if place is None else _another(case, name, array, place)
    if place is None or number is None:
        return None
    other = array.copy()
    other[place] = number
    return _made(case, name, other, f"{_at(name, place)} was {_told(number)} and not {_told(array[place])}")


def _made(case: Case, name: str, array: Array, words: str) -> Changed:
    return Changed(replace(case, inputs={**case.inputs, name: array}, expected={}), words)


def _neighbours(array: Array, draw: random.Random) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Places next to each other in the last axis that has several, from a drawn one on; neither end of the array."""
    axis = next((n for n in reversed(range(array.ndim)) if array.shape[n] > 1), None)
    if axis is None or not array.size:
        return []
    last = array.size - 1
    start = draw.randrange(array.size)
    found = []
    for flat in (*range(start, array.size), *range(start)):
        place = tuple(int(n) for n in np.unravel_index(flat, array.shape))
        if place[axis] + 1 < array.shape[axis]:
            other = (*place[:axis], place[axis] + 1, *place[axis + 1 :])
            ends = {flat, int(np.ravel_multi_index(other, array.shape))} & {0, last}
            if not ends or array.size < 4:
                found.append((place, other))
        if len(found) == MOST:
            break
    return found


MOST = 64
"""How many places are looked at: an operand of equal numbers has none that differ."""


def _differ(one: object, other: object) -> bool:
    both = np.array([one, other], np.float64)
    return bool(np.isfinite(both).all()) and both[0] != both[1]


def _another(case: Case, name: str, array: Array, place: tuple[int, ...]) -> object:
    """Another number for a place; None where every other one would make another kind of call."""
    here = array[place]
    if array.dtype.kind == "b":
        return None if here else np.True_
    if array.dtype.kind == "f":
        return here / 2 if np.isfinite(here) and here else array.dtype.type(1)
    if name == "kv_lengths":
        return here - 1 if here > 1 else None
    return here + 1


def _at(name: str, place: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, place))}]"


def _told(number: object) -> str:
    return f"{float(number):.9g}" if isinstance(number, np.floating) else str(number)


def alike(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Whether two answers are the same, bit for bit."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
