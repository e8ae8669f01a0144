"""A piece computed by NumPy in place, where its logits are shown to be small.

No logit is larger than the longest query times the longest key. Where that, or for few rows a look at the logits,
keeps all of them within BOUND, their exponentials neither overflow nor underflow: none is shifted.
What is hidden is multiplied by 0 after the exponential, which is 10 times slower at -inf. `exp2` takes half the time
of `exp`; log2(e) is a factor of the scale. NaN and Inf, even behind a mask, show in the bound or in the output.
"""

import functools
import math
from typing import Any, NamedTuple

import array_api_compat

from mha_core.arrays import cast, cast_bias
from mha_core.heads import grouped, ungrouped
from mha_core.options import Options, Sizes, scale_of
from mha_core.parts import Part, Piece, longest
from mha_core.result import Array, AttentionResult
from mha_core.visibility import Band, band_of, columns_in_tiles, cut, masked_in

LOG2_E = 1 / math.log(2)
BOUND = 43.0
"""Largest logit in base 2: a weight from 2**-43 to 2**43 loses nothing to underflow, nor do its sums overflow."""
LARGEST_OUTPUT = 1e18
"""Sums up to here stay finite when they are divided by a total of at least 2**-BOUND."""
TILE_ELEMENTS = 2**18
"""Logits of a tile, unless that makes it narrower than TILE_COLUMNS."""
TILE_COLUMNS = 512
"""Fewest keys of a tile where there are more."""
FEW_LOGITS = 2**12
"""Logits up to which a sum of squares is the quicker look."""
FEW_ROWS = 64
"""Fewer query rows than this cost less to look at than the keys do to measure."""


class Tile(NamedTuple):
    """Some keys that some rows see."""

    columns: slice
    visible: Array | None
    """1 or 0, broadcasting to (..., H, rows, columns); None where all are visible."""
    bias: Array | None
    """In base 2, broadcasting likewise, 0 where it hides."""
    largest: float
    """The bias of largest magnitude."""


def in_place(np: Any, piece: Piece, place: Array | None) -> AttentionResult | None:
    """Output, in its place where that is given, and lse where asked for; None where they cannot be vouched for."""
    part, options = piece.part, piece.part.options
    if not array_api_compat.is_numpy_namespace(np) or 0 in part.sizes.logits:
        return None
    tiles = piece.once(_tiles, np)
    if not tiles:
        return None
    sizes = part.sizes.with_rows(piece.rows.stop - piece.rows.start)
    base = LOG2_E if options.softcap is None else 1.0
    query = grouped(np, part.query[..., piece.rows, :] * (scale_of(options, sizes) * base), sizes)
    bound = _bound(np, query, part)
    widest = max(tile.columns.stop - tile.columns.start for tile in tiles)
    buffer = np.empty(math.prod(query.shape[:-1]) * widest, dtype=query.dtype)
    sums = total = None
    for tile in tiles:
        weights = _weights(np, query, part, tile, buffer, bound)
        if weights is None:
            return None
        value = part.value[..., tile.columns, :]
        ones = _ones(np, value.dtype, value.shape[-2])
        if sums is None:
            sums, total = np.matmul(weights, value), np.matmul(weights, ones)
        else:
            sums += np.matmul(weights, value)
            total += np.matmul(weights, ones)
    return _divided(np, sums, total, options, sizes, place)


@functools.lru_cache(maxsize=64)
def _ones(np: Any, dtype: Any, length: int) -> Array:
    """A column of ones."""
    return np.ones((length, 1), dtype=dtype)


def _tiles(np: Any, part: Part, rows: slice) -> list[Tile]:
    """The keys that some rows see, in tiles with their masks."""
    options, sizes = part.options, part.sizes
    group_rows = math.prod(sizes.batch) * sizes.num_heads * (rows.stop - rows.start)
    if not options.hides and group_rows * sizes.kv_len <= TILE_ELEMENTS:
        return [Tile(slice(0, sizes.kv_len), None, None, 0.0)] if sizes.kv_len else []
    band = band_of(np, options, sizes, part.query)
    width = max(TILE_COLUMNS, TILE_ELEMENTS // max(1, group_rows))
    return [_tile(np, part, band, rows, columns) for columns in columns_in_tiles(band, sizes, rows, width)]


def _tile(np: Any, part: Part, band: Band, rows: slice, columns: slice) -> Tile:
    """A tile with its masks; a bias of -Inf is one too."""
    options, dtype = part.options, part.query.dtype
    visible = masked_in(np, options, part.sizes, band, rows, columns, part.query)
    bias, largest = None, 0.0
    if options.attn_bias is not None:
        bias = cast_bias(np, cut(options.attn_bias, rows, columns), dtype)
        if bias.min() == -math.inf:
            seen = bias != -math.inf
            bias = np.where(seen, bias, 0.0)
            visible = seen if visible is None else np.logical_and(visible, seen)
        bias = bias * LOG2_E
        largest = max(float(bias.max()), -float(bias.min()))
    return Tile(columns, None if visible is None else cast(np, visible, dtype), bias, largest)


def _bound(np: Any, query: Array, part: Part) -> float:
    """What no product of scaled query and key exceeds in magnitude; NaN or Inf where that is not known."""
    options = part.options
    bound = math.inf
    if query.shape[-2] >= FEW_ROWS:
        bound = longest(np, query) * part.longest_key * 1.01 + 1e-9
    return bound if options.softcap is None else min(bound, float(options.softcap)) * LOG2_E


def _weights(np: Any, query: Array, part: Part, tile: Tile, buffer: Array, bound: float) -> Array | None:
    """The weights of a tile, not normalised, (..., G, H // G * rows, columns); None where they may overflow."""
    key = part.key[..., tile.columns, :]
    shape = (*query.shape[:-1], key.shape[-2])
    logits = buffer[: math.prod(shape)].reshape(shape)
    np.matmul(query, np.matrix_transpose(key), out=logits)
    cap = part.options.softcap
    if cap is not None:
        np.divide(logits, cap, out=logits)
        np.tanh(logits, out=logits)
        np.multiply(logits, cap * LOG2_E, out=logits)
    heads = logits
    if tile.bias is not None or tile.visible is not None:
        rows = shape[-2] * shape[-3] // part.sizes.num_heads
        heads = logits.reshape((*part.sizes.batch, part.sizes.num_heads, rows, shape[-1]))
    if tile.bias is not None:
        np.add(heads, tile.bias, out=heads)
    if not bound + tile.largest <= BOUND and not _within(np, logits):
        return None
    np.exp2(logits, out=logits)
    if tile.visible is not None:
        np.multiply(heads, tile.visible, out=heads)
    return logits


def _within(np: Any, logits: Array) -> bool:
    """Whether no logit exceeds BOUND in magnitude; False for NaN."""
    if logits.size <= FEW_LOGITS:  # one call in place of two
        flat = logits.reshape(-1)
        if np.dot(flat, flat) <= BOUND**2:
            return True
    return bool(logits.max() <= BOUND and logits.min() >= -BOUND)


def _divided(
    np: Any, sums: Array, total: Array, options: Options, sizes: Sizes, place: Array | None
) -> AttentionResult | None:
    """The sums over the totals, (..., H, rows, d_v), and the log of these; None where a sum is not finite."""
    flat = sums.reshape(-1)
    if not np.dot(flat, flat) <= LARGEST_OUTPUT**2:
        return None
    sums, total = ungrouped(np, sums, sizes), ungrouped(np, total, sizes)
    occupied = None
    if options.hides and not total.min() > 0.0:  # weights are above 0, so that such a row sees no key
        occupied = total > 0.0
    if options.sinks is not None:
        sinks = np.reshape(cast(np, options.sinks, total.dtype), (-1, 1, 1)) * LOG2_E
        if not (sinks.max() <= BOUND):
            return None
        total = total + np.exp2(sinks)  # ATT-12
    if occupied is not None:
        total = np.where(occupied, total, 1.0)  # MASK-3
    output = np.divide(sums, total, out=place)
    if not options.return_lse:
        return AttentionResult(output)
    lse = np.log(total)
    if occupied is not None:
        lse[~occupied] = -math.inf  # MASK-13
    return AttentionResult(output, lse=lse[..., 0])
