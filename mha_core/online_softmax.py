"""A piece by an online softmax over tiles of keys, on the assumption that all is finite.

Masks are added as 0 and -Inf; weights are not normalised but the output is. Whatever breaks the assumption
(a NaN or Inf even behind a mask, a row without keys, an overflow) makes the output or the total not finite.
"""

import functools
import math
from typing import Any, NamedTuple

from mha_core.arrays import beside, cast, cast_bias, holds, known_finite
from mha_core.options import Options, scale_of
from mha_core.parts import Part, Piece
from mha_core.result import Array, AttentionResult
from mha_core.softmax import capped, products, weighted_sums
from mha_core.visibility import Band, band_of, columns_in_tiles, cut, masked_in

TILE_ELEMENTS = 2**18
"""Logits of a tile, unless that makes it narrower than TILE_COLUMNS."""
TILE_COLUMNS = 1024
"""Fewest keys of a tile where there are more."""


class Tile(NamedTuple):
    """Some keys that some rows see."""

    columns: slice
    added: Array | None
    """Bias and masks, (..., H or 1, rows, columns); None for nothing."""


def online_softmax(xp: Any, piece: Piece) -> AttentionResult | None:
    """Output and, where asked for, lse; None where they cannot be vouched for."""
    part, tiles = piece.part, piece.once(_tiles, xp)
    if not tiles:
        return None
    query = part.query[..., piece.rows, :] * scale_of(part.options, part.sizes)
    sums = (_of_tile(xp, query, part, tile, several=len(tiles) > 1) for tile in tiles)
    return _divided(xp, functools.reduce(functools.partial(_merged, xp), sums), part.options)


def _tiles(xp: Any, part: Part, rows: slice) -> list[Tile]:
    """The keys that some rows see, in tiles."""
    options, sizes = part.options, part.sizes
    group_rows = math.prod(sizes.batch) * sizes.num_heads * (rows.stop - rows.start)
    if not options.hides and group_rows * sizes.kv_len <= TILE_ELEMENTS:
        return [Tile(slice(0, sizes.kv_len), None)] if sizes.kv_len else []
    band = band_of(xp, options, sizes, part.query)
    width = max(TILE_COLUMNS, TILE_ELEMENTS // max(1, group_rows))
    tiles = columns_in_tiles(band, sizes, rows, width)
    return [Tile(columns, _added(xp, part, band, rows, columns)) for columns in tiles]


def _added(xp: Any, part: Part, band: Band, rows: slice, columns: slice) -> Array | None:
    """Bias and masks of a tile as one summand of its logits; None for nothing."""
    options, dtype = part.options, part.query.dtype
    visible = masked_in(xp, options, part.sizes, band, rows, columns, part.query)
    bias = None if options.attn_bias is None else cast_bias(xp, cut(options.attn_bias, rows, columns), dtype)
    if visible is None:
        return bias
    if bias is None:  # not of rank 0, which in NumPy 1 has no more say in the dtype than a number
        bias = xp.zeros((1, 1), dtype=dtype, **beside(part.query))
    return xp.where(visible, bias, -math.inf)


class _Sums(NamedTuple):
    """What some keys add up to."""

    output: Array
    """(..., H, rows, d_v), of the exponentials times the values."""
    total: Array
    """(..., H, rows, 1), of the exponentials."""
    highest: Array
    """(..., H, rows, 1), what the logits were shifted by."""


def _of_tile(xp: Any, query: Array, part: Part, tile: Tile, several: bool) -> _Sums:
    """The sums over a tile, of several or the only one."""
    sizes, dtype = part.sizes, query.dtype
    logits, _ = capped(xp, products(xp, query, part.key[..., tile.columns, :], sizes), part.options)
    if tile.added is not None:
        logits = logits + tile.added
    highest = xp.max(logits, axis=-1, keepdims=True)
    if several:  # of which a row may see none in this
        lowest = xp.full((1, 1), xp.finfo(dtype).min, dtype=dtype, **beside(query))
        highest = xp.maximum(highest, lowest)
    weights = xp.exp(logits - highest)
    output = weighted_sums(xp, weights, part.value[..., tile.columns, :], sizes)
    return _Sums(output, _totals(xp, weights, part), highest)


def _totals(xp: Any, weights: Array, part: Part) -> Array:
    """The sums of (..., H, rows, columns) over the columns, (..., H, rows, 1), as is fastest."""
    if weights.shape[-2] == 1:  # a product would be of vectors, many times slower in some libraries
        return xp.sum(weights, axis=-1, keepdims=True)
    shape = (*weights.shape[:-3], part.sizes.num_kv_heads, weights.shape[-1], 1)
    return weighted_sums(xp, weights, xp.ones(shape, dtype=weights.dtype, **beside(weights)), part.sizes)


def _merged(xp: Any, one: _Sums, other: _Sums) -> _Sums:
    """The sums over the keys of both."""
    highest = xp.maximum(one.highest, other.highest)
    shares = xp.exp(one.highest - highest), xp.exp(other.highest - highest)
    output = one.output * shares[0] + other.output * shares[1]
    return _Sums(output, one.total * shares[0] + other.total * shares[1], highest)


def _divided(xp: Any, sums: _Sums, options: Options) -> AttentionResult | None:
    """The result, unless it shows that something was not finite, too large or not there."""
    total, highest = sums.total, sums.highest
    if options.sinks is not None:
        sinks = xp.reshape(cast(xp, options.sinks, total.dtype), (-1, 1, 1))  # ATT-12
        total = total + xp.exp(sinks - highest)
    output = sums.output / total
    if not known_finite(xp, output):
        return None
    if options.sinks is not None and not (known_finite(xp, total) and holds(xp, sums.total >= 1.0)):
        return None  # a sink makes finite what has no key
    if not options.return_lse:
        return AttentionResult(output)
    return AttentionResult(output, lse=(highest + xp.log(total))[..., 0])
