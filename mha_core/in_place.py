"""A piece computed by NumPy in place: tile by tile the weights, their sums and those of the values."""

import math
from typing import Any

from mha_core.arrays import cast, writes_in_place
from mha_core.heads import ungrouped
from mha_core.parts import Part, Piece
from mha_core.result import Array, AttentionResult
from mha_core.weights_in_place import (
    Tile,
    bound_of,
    is_ordinary,
    ones,
    scaled,
    sinks_in,
    tiles_of,
    weights_of,
)

TILE_ELEMENTS = 2**18
"""Logits of a tile, unless that makes it narrower than TILE_COLUMNS."""
TILE_COLUMNS = 512
"""Fewest keys of a tile where there are more."""


def in_place(np: Any, piece: Piece, place: Array | None) -> AttentionResult | None:
    """Output, in its place where that is given, and lse where asked for; None where they cannot be vouched for."""
    part = piece.part
    if not writes_in_place(np, part.query) or 0 in part.sizes.logits:
        return None
    tiles = piece.once(_tiles, np)
    if not tiles:
        return None
    query = scaled(np, part, piece.rows)
    bound = bound_of(np, query, part)
    buffer, rows = None, 0
    if len(tiles) > 1:  # one place for the weights of all
        rows = math.prod(query.shape[:-1])
        buffer = np.empty(rows * max(tile.width for tile in tiles), dtype=query.dtype)
    sums = total = None
    for tile in tiles:
        reused = None
        if buffer is not None:
            reused = buffer[: rows * tile.width].reshape((*query.shape[:-1], tile.width))
        weights = weights_of(np, reused, query, part, tile, bound)
        if weights is None:
            return None
        value = part.value[..., tile.columns, :]
        if sums is None:
            sums, total = weights @ value, weights @ ones(np, value.dtype, tile.width)
        else:
            sums += weights @ value
            total += weights @ ones(np, value.dtype, tile.width)
    return _divided(np, sums, total, part, piece.rows.stop - piece.rows.start, place)


def _tiles(np: Any, part: Part, rows: slice) -> list[Tile]:
    """The keys that some rows see, in tiles that the caches hold."""
    group_rows = math.prod(part.sizes.batch) * part.sizes.num_heads * (rows.stop - rows.start)
    return tiles_of(np, part, rows, max(TILE_COLUMNS, TILE_ELEMENTS // max(1, group_rows)))


def _divided(
    np: Any, sums: Array, total: Array, part: Part, rows: int, place: Array | None
) -> AttentionResult | None:
    """The sums over the totals, (..., H, rows, d_v), and the log of these; None where a sum is not finite."""
    options, sizes = part.options, part.sizes.with_rows(rows)
    if not is_ordinary(np, sums):
        return None
    sums, total = ungrouped(np, sums, sizes), ungrouped(np, total, sizes)
    occupied, empty = None, -math.inf
    if options.hides and not total.min() > 0.0:  # weights are above 0, so that such a row sees no key
        occupied = total > 0.0
    if options.sinks is not None:
        sinks = sinks_in(np, part)
        if sinks is None:
            return None
        total = total + sinks  # ATT-12
        empty = np.reshape(cast(np, options.sinks, total.dtype), (-1, 1, 1))
    if occupied is not None:
        total = np.where(occupied, total, 1.0)  # MASK-3
    output = np.divide(sums, total, out=place)
    if not options.return_lse:
        return AttentionResult(output)
    lse = np.log(total)
    if occupied is not None:
        lse = np.where(occupied, lse, empty)  # MASK-16
    return AttentionResult(output, lse=lse[..., 0])
