"""Sums over blocks, each of which adds to some keys, and over the axes that an operand broadcasts over."""

import math
from typing import Any

import array_api_compat

from mha_core.arrays import beside
from mha_core.result import Array


class Total:
    """A sum along one axis of which every part covers a slice; memory for one array, whatever the parts."""

    def __init__(self, xp: Any, axis: int, length: int) -> None:
        self._xp, self._axis, self._length = xp, axis, length
        self._sum: Array | None = None

    def add(self, part: Array, at: slice) -> None:
        """Adds a part, which the sum may keep."""
        if self._sum is None:
            self._sum = self._placed(part, at)
        elif array_api_compat.is_writeable_array(self._sum):
            index = (..., at, *[slice(None)] * (-1 - self._axis))
            self._sum[index] = self._sum[index] + part
        else:
            self._sum = self._sum + self._placed(part, at)

    def array(self) -> Array:
        """The sum of what was added, at least one part."""
        return self._sum

    def _placed(self, part: Array, at: slice) -> Array:
        """The part between zeros, in the length of the whole."""
        sides = [(at.start, 0), (self._length - at.stop, 1)]
        for missing, after in sides:
            if missing:
                shape = list(part.shape)
                shape[self._axis] = missing
                zeros = self._xp.zeros(tuple(shape), dtype=part.dtype, **beside(part))
                part = self._xp.concat([part, zeros] if after else [zeros, part], axis=self._axis)
        return part


def summed_to(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """`x` summed over the axes along which an operand of that shape broadcasts to it (GRAD-5)."""
    extra = len(x.shape) - len(shape)
    if extra:
        x = xp.sum(xp.reshape(x, (math.prod(x.shape[:extra]), *x.shape[extra:])), axis=0)
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1 and x.shape[axis] != 1)
    return xp.sum(x, axis=axes, keepdims=True) if axes else x
