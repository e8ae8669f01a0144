"""Tiles of queries and keys, as a call is cut into them."""

from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.vectors.case import Array


class Tile:
    """For each query and key of a call the tile that it is in; queries are [q_len, 1]."""

    def __init__(self, c: Call, height: int, width: int) -> None:
        self.c, self.height, self.width = c, height, width
        self.query: Array = np.arange(c.q_len)[:, None]
        self.row = self.query // height  # number of the tile
        self.first = self.row * height
        self.last = np.minimum(self.first + height, c.q_len) - 1
        self.column = c.columns // width
        self.begin = self.column * width
        self.end = np.minimum(self.begin + width, c.kv_len)

    def above(self, x: Any) -> Any:
        """What belongs to the first query of the tile: x is [..., q_len, any]."""
        return np.take(x, self.first[:, 0], axis=-2)

    def below(self, x: Any) -> Any:
        """What belongs to the last one."""
        return np.take(x, self.last[:, 0], axis=-2)

    def some(self, x: Array) -> Array:
        """Whether any key of the tile is visible to the query, at each key."""
        return self._over(np.logical_or, x)

    def every(self, x: Array) -> Array:
        """Whether all keys are."""
        return self._over(np.logical_and, x)

    def _over(self, function: np.ufunc, x: Array) -> Array:
        if not x.shape[-1]:
            return x
        found: Array = function.reduceat(x, np.arange(0, x.shape[-1], self.width), axis=-1)[..., self.column]
        return found

    def high(self, x: Array) -> Array:
        """Whether any query of the tile sees the key, at each query."""
        if not x.shape[-2]:
            return x
        found: Array = np.logical_or.reduceat(x, np.arange(0, x.shape[-2], self.height), axis=-2)[
            ..., self.row[:, 0], :
        ]
        return found

    def touched(self, x: Array) -> Array:
        """Whether any query of the tile sees any of its keys, at each query and key."""
        return self.some(self.high(x))


def full(c: Call, x: Any) -> Array:
    """What a rule shows, at each query and key."""
    return np.broadcast_to(x, (*np.shape(x)[:-2], c.q_len, c.kv_len))
