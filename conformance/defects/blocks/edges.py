"""How a length is cut into blocks; each mistake of a block is one of a family, by size."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.defect import varied
from conformance.vectors.case import Array

Edges = Callable[[int], Array]
"""A length -> where its blocks begin."""


def of(size: int) -> Edges:
    """Blocks of a size, the last of which may be shorter."""
    return lambda length: np.arange(0, max(length, 1), size)


def into(parts: int) -> Edges:
    """A number of blocks of one size, rounded up."""
    return lambda length: np.arange(0, max(length, 1), max(-(-length // parts), 1))


def into_whole(parts: int, size: int) -> Edges:
    """A number of blocks that are made of whole blocks of a size each, rounded up."""

    def begins(length: int) -> Array:
        blocks = -(-length // size)
        return np.arange(0, max(length, 1), max(-(-blocks // parts), 1) * size)

    return begins


def halves(length: int) -> Array:
    """Two blocks, the first of which is shorter."""
    return np.unique([0, length // 2])


SIZES = (2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256, 512)
FAMILY: dict[str, Edges] = {
    **{f"in blocks of {size}": of(size) for size in SIZES},
    "in two halves": into(2),
    "in two halves, the first shorter": halves,
    "in three parts": into(3),
    "in four parts": into(4),
}
"""What to say of it -> the blocks."""
REACH = {f"in blocks of {size}": size for size in SIZES}


def family(make: Callable[[Edges], Any], at: int = 16, reach: str = "kv_len") -> dict[str, Any]:
    """The change, and the same mistake in blocks of other sizes, as fields of a Defect.

    `reach` is the length, of keys or queries, up to one block of which nothing shows; "" if there is none.
    """
    made = {label: make(edges) for label, edges in FAMILY.items()}
    return {**varied(made, f"in blocks of {at}"), "beyond": (reach, REACH)}


PARTS = {
    f"in {parts} parts of whole blocks of {size}": into_whole(parts, size)
    for parts in (2, 4, 8)
    for size in (8, 16, 32, 64, 128)
}
"""Parts of the keys, each of which a program reads block by block."""


def in_parts(make: Callable[[Edges], Any]) -> dict[str, Any]:
    """The same family with parts that are made of whole blocks in it, as fields of a Defect."""
    found = family(make)
    found["variants"] |= {label: make(edges) for label, edges in PARTS.items()}
    sizes = {label: int(label.rpartition(" ")[2]) for label in PARTS}
    return {**found, "beyond": ("kv_len", {**REACH, **sizes})}


def ends(begins: Array, length: int) -> Array:
    """Where blocks end."""
    return np.append(begins[1:], length)


def whole(begins: Edges, length: int) -> int:
    """Where the last full block ends; 0 if the only one is not full."""
    size = size_of(begins, length)
    return length // size * size


def size_of(begins: Edges, length: int) -> int:
    """How long a full block is; of a number of parts, all of it where there is only one."""
    first = begins(length)
    if len(first) == 1:
        first = begins(2 * max(SIZES) + 3)  # of which no part has one of the sizes
        if first[1] not in SIZES:
            return max(length, 1)
    return int(first[1] - first[0])


def begin_of(begins: Array, index: Array) -> Array:
    """Where the block of each index begins; below zero and behind the end as in the nearest block."""
    found: Array = begins[np.clip(np.searchsorted(begins, index, side="right") - 1, 0, None)]
    return found


def end_of(begins: Array, length: int, index: Array) -> Array:
    """Where the block of each index ends."""
    found: Array = ends(begins, length)[np.clip(np.searchsorted(begins, index, side="right") - 1, 0, None)]
    return found


HEIGHTS = (2, 4, 8, 16, 32, 64)
TILES = (
    *((height, width) for height in HEIGHTS for width in HEIGHTS),
    *((3, 3), (5, 5), (2, 3), (3, 2), (3, 4), (4, 3), (3, 5), (5, 3)),
)
"""Sizes of tiles, queries and keys."""


def tiled(make: Callable[[int, int], Any], height: int = 4, width: int = 4) -> dict[str, Any]:
    """The change, and the same mistake in tiles of other sizes, as fields of a Defect: queries, keys -> change."""
    said = "in tiles of {} queries and {} keys".format
    made = {said(*tile): make(*tile) for tile in TILES}
    return {**varied(made, said(height, width)), "beyond": ("", {said(*tile): max(tile) for tile in TILES})}
