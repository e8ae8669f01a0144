"""A part computed fast: an online softmax over tiles of keys, on the assumption that all is finite.

Masks are added as 0 and -inf, weights are not normalised but the output is, and where earlier parts showed logits
of ordinary size none are searched for their highest. Whatever breaks the assumption (a NaN or Inf even behind a
mask, a row without keys, an overflow) makes the output or the total not finite, or the total too small:
then the part is not trusted, and computed again.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

from mha_core.arrays import beside, cast, cast_bias, holds, known_finite
from mha_core.options import Options, Sizes, scale_of
from mha_core.parts import Part, is_small
from mha_core.result import Array, AttentionResult
from mha_core.softmax import capped, means, products
from mha_core.visibility import Band, band_of, columns_of, cut, free_columns, masked_in

TILE_ELEMENTS = 2**18
"""Logits of a tile, unless that makes it narrower than TILE_COLUMNS."""
TILE_COLUMNS = 1024
"""Fewest keys of a tile where there are more."""
FREE_COLUMNS = 128
"""Fewest keys that are worth a tile of their own for that no mask need be added to them."""
ORDINARY = 30.0
"""Logits up to here are exponentiated as they are, far from overflow."""


class Evidence:
    """What the parts seen so far say of the logits of the next."""

    ordinary = False
    """Whether the last part's logits needed no shift to be exponentiated."""


def tiles_of(xp: Any, part: Part, rows: slice) -> list[tuple[slice, Array | None]]:
    """The keys that some rows see, in tiles, with what is added to the logits: (..., H or 1, rows, columns)."""
    options, sizes = part.options, part.sizes
    group_rows = math.prod(sizes.batch) * sizes.num_heads * (rows.stop - rows.start)
    if not options.hides and group_rows * sizes.kv_len <= TILE_ELEMENTS:
        return [(slice(0, sizes.kv_len), None)] if sizes.kv_len else []
    band = band_of(xp, options, sizes, part.query)
    columns = columns_of(band, sizes, rows)
    free = free_columns(band, columns, rows)
    edges = [columns.start, columns.stop]
    if free.start - columns.start + columns.stop - free.stop and free.stop - free.start >= FREE_COLUMNS:
        edges = sorted({*edges, free.start, free.stop})
    step = max(TILE_COLUMNS, TILE_ELEMENTS // max(1, group_rows))
    tiles = [
        slice(start, min(start + step, stop))
        for begin, stop in itertools.pairwise(edges)
        for start in range(begin, stop, step)
    ]
    return [(tile, _added(xp, part, band, rows, tile)) for tile in tiles]


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


def attend_tiles(
    xp: Any, part: Part, rows: slice, tiles: list[tuple[slice, Array | None]], evidence: Evidence
) -> AttentionResult | None:
    """Output and, where asked for, lse of some rows; None where they cannot be trusted."""
    if not tiles:
        return None
    query = part.query[..., rows, :] * scale_of(part.options, part.sizes)
    if evidence.ordinary:
        sums = _over_tiles(xp, query, part, tiles, shifted=False)
        result = _trusted(xp, sums, part.options)
        if result is not None:
            return result
    sums = _over_tiles(xp, query, part, tiles, shifted=True)
    result = _trusted(xp, sums, part.options)
    evidence.ordinary = result is not None and not is_small(part.sizes) and _is_ordinary(xp, sums)
    return result


class _Sums(NamedTuple):
    """What some keys add up to."""

    output: Array
    """(..., H, rows, d_v), of the exponentials times the values."""
    total: Array
    """(..., H, rows, 1), of the exponentials."""
    highest: Array | None
    """(..., H, rows, 1), what the logits were shifted by; None for nothing."""


def _over_tiles(
    xp: Any, query: Array, part: Part, tiles: list[tuple[slice, Array | None]], shifted: bool
) -> _Sums:
    """The sums over all tiles."""
    several = len(tiles) > 1
    if not several:
        return _of_tile(xp, query, part, *tiles[0], shifted, several)
    sums = (_of_tile(xp, query, part, columns, added, shifted, several) for columns, added in tiles)
    return functools.reduce(functools.partial(_merged, xp), sums)


def _of_tile(
    xp: Any, query: Array, part: Part, columns: slice, added: Array | None, shifted: bool, several: bool
) -> _Sums:
    """The sums over a tile, of several or the only one."""
    sizes, dtype = part.sizes, query.dtype
    logits, _ = capped(xp, products(xp, query, part.key[..., columns, :], sizes), part.options)
    if added is not None:
        logits = logits + added
    highest = None
    if shifted:
        highest = xp.max(logits, axis=-1, keepdims=True)
        if several:  # of which a row may see none in this
            lowest = xp.full((1, 1), xp.finfo(dtype).min, dtype=dtype, **beside(query))
            highest = xp.maximum(highest, lowest)
        logits = logits - highest
    weights = xp.exp(logits)
    output = means(xp, weights, part.value[..., columns, :], sizes)
    return _Sums(output, _totals(xp, weights, sizes), highest)


def _totals(xp: Any, weights: Array, sizes: Sizes) -> Array:
    """The sums of (..., H, rows, columns) over the columns, (..., H, rows, 1), as is fastest."""
    if weights.shape[-2] == 1:  # a product would be of vectors, many times slower in some libraries
        return xp.sum(weights, axis=-1, keepdims=True)
    shape = (*weights.shape[:-3], sizes.num_kv_heads, weights.shape[-1], 1)
    return means(xp, weights, xp.ones(shape, dtype=weights.dtype, **beside(weights)), sizes)


def _merged(xp: Any, one: _Sums, other: _Sums) -> _Sums:
    """The sums over the keys of both, all of them shifted or none."""
    if one.highest is None or other.highest is None:
        return _Sums(one.output + other.output, one.total + other.total, None)
    highest = xp.maximum(one.highest, other.highest)
    shares = xp.exp(one.highest - highest), xp.exp(other.highest - highest)
    output = one.output * shares[0] + other.output * shares[1]
    return _Sums(output, one.total * shares[0] + other.total * shares[1], highest)


def _trusted(xp: Any, sums: _Sums, options: Options) -> AttentionResult | None:
    """The result, unless it shows that something was not finite, too large, too small or not there."""
    total, highest = sums.total, sums.highest
    if options.sinks is not None:
        sinks = xp.reshape(cast(xp, options.sinks, total.dtype), (-1, 1, 1))  # ATT-12
        total = total + xp.exp(sinks if highest is None else sinks - highest)
    output = sums.output / total
    if not known_finite(xp, output):
        return None
    sure = options.sinks is None and highest is not None  # the total is from 1 to kv_len
    if not (sure or (known_finite(xp, total) and holds(xp, sums.total >= 1.0))):
        return None
    if not options.return_lse:
        return AttentionResult(output)
    lse = xp.log(total) if highest is None else highest + xp.log(total)
    return AttentionResult(output, lse=lse[..., 0])


def _is_ordinary(xp: Any, sums: _Sums) -> bool:
    """Whether the logits could as well have been exponentiated without a shift."""
    highest = sums.highest
    if highest is None:
        return True
    return holds(xp, xp.logical_and(highest <= ORDINARY, sums.total * xp.exp(highest) >= 1.0))
