"""Answers that no mistake in the formula gives: another one each time, and memory that nobody wrote."""

from collections.abc import Sequence

import numpy as np

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Note
from conformance.running.again import MOST
from conformance.running.poison import NO_NUMBER, OTHER

FEWEST = 0.05
"""The share of the failing rows with numbers that has to show it: what is wrong elsewhere may be NaN by chance."""
ENOUGH = 2
"""Failing rows that show it."""
CHANCE, SHARE = 8, 1e-3
"""Numbers of 16 bits, and their share, that may have the bits of freed memory."""


def by_memory(failures: Sequence[Failure]) -> list[Note]:
    """What is said of failing rows by their memory alone."""
    found = []
    unsteady = tuple(f for f in failures if f.unsteady)
    numbers = tuple(f for f in failures if f.outputs is not None)
    unwritten = tuple(f for f in failures if _unwritten(f))
    if len(unwritten) >= max(ENOUGH, FEWEST * len(numbers)):
        found.append(
            Note(
                "unwritten",
                "Your results hold memory that was freed before the call: a part of them is never written",
                ("IND-4",),
                unwritten,
                first=True,
            )
        )
    elif len(unsteady) >= min(ENOUGH, len(failures)) > 0:
        every = len(unsteady) >= min(MOST, len(numbers))  # of those that were asked twice
        found.append(
            Note(
                "unsteady",
                "You give another answer when you are asked again: a race, memory that is not written, "
                "random numbers, or state that one call leaves to the next",
                ("IND-4",),
                numbers if every else unsteady,
                first=True,
            )
        )
    return found


def _unwritten(failure: Failure) -> bool:
    """Whether a result holds the bytes that freed memory has before each call; so may a NaN that is given."""
    given = [array for array in failure.case.inputs.values() if array.dtype.kind == "f"]
    if not all(np.isfinite(array).all() for array in given):
        return False
    return any(
        _of(array, byte).sum() >= _fewest(array, byte)
        for array in (failure.outputs or {}).values()
        for byte in (NO_NUMBER, OTHER)
    )


def _fewest(array: np.ndarray, byte: int) -> float:
    """Elements that have to hold the byte: of two bytes a number may do so by chance."""
    return CHANCE + SHARE * array.size if array.itemsize == 2 and byte == OTHER else 1


def _of(array: np.ndarray, byte: int) -> np.ndarray:
    """The elements of which each byte is this one."""
    whole = np.ascontiguousarray(array)
    if not whole.size:
        return np.zeros(0, bool)
    held: np.ndarray = whole.view(np.uint8).reshape(whole.size, whole.itemsize)
    return np.asarray((held == byte).all(axis=-1))
