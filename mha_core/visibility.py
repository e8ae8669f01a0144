"""Which query may attend which key: the intersection of all masks, row block by row block (MASK-9)."""

import functools
import itertools
import math
import numbers
from typing import Any, NamedTuple

from mha_core.arrays import arange, cast, chunked_as_rows
from mha_core.options import Options, Sizes
from mha_core.result import Array

FREE_COLUMNS = 128
"""Fewest keys that are worth a tile of their own for that no mask need be added to them."""


class Band(NamedTuple):
    """The keys of causal attention and a window: `low <= j - i <= high`, None where that side is open."""

    low: int | Array | None
    high: int | Array | None


def band_of(xp: Any, options: Options, sizes: Sizes, like: Array) -> Band:
    """The band around `i + q_offset` (MASK-6, MASK-8, MASK-10, MASK-11)."""
    left, right = options.window or (None, None)
    if options.is_causal:
        right = 0  # a window's right side is never negative
    offset = 0 if options.q_offset is None else options.q_offset

    def shifted(by: int) -> int | Array:
        if isinstance(offset, numbers.Integral):
            return max(-sizes.q_len, min(sizes.kv_len, int(offset) + by))  # as good as any number beyond
        index = _per_entry(xp, offset, sizes, arange(xp, 0, 1, like).dtype)
        limit = xp.iinfo(index.dtype).max // 4
        return index + max(-limit, min(limit, by))

    return Band(None if left is None else shifted(-left), None if right is None else shifted(right))


def columns_of(band: Band, sizes: Sizes, rows: slice) -> slice:
    """The keys outside of which the band hides everything from a block of rows."""
    start, stop = 0, sizes.kv_len
    if isinstance(band.low, int):
        start = min(max(rows.start + band.low, 0), stop)
    if isinstance(band.high, int):
        stop = max(min(rows.stop + band.high, stop), start)
    return slice(start, stop)


def free_columns(band: Band, columns: slice, rows: slice) -> slice:
    """Those of a block's keys that the band hides from none of its rows, if they are known."""
    start, stop = columns.start, columns.stop
    if isinstance(band.low, int):
        start = min(max(rows.stop - 1 + band.low, start), stop)
    if isinstance(band.high, int):
        stop = max(min(rows.start + band.high + 1, stop), start)
    known = all(side is None or isinstance(side, int) for side in (band.low, band.high))
    return slice(start, stop if known else start)


def columns_in_tiles(band: Band, sizes: Sizes, rows: slice, width: int) -> list[slice]:
    """The keys that a block of rows sees, in tiles of at most `width`, the free ones in tiles of their own."""
    columns = columns_of(band, sizes, rows)
    free = free_columns(band, columns, rows)
    edges = [columns.start, columns.stop]
    if free.stop - free.start >= FREE_COLUMNS:
        edges = sorted({*edges, free.start, free.stop})
    tiles = []
    for start, stop in itertools.pairwise(edges):
        step = math.ceil((stop - start) / max(1, math.ceil((stop - start) / width)))
        tiles += [slice(at, min(at + step, stop)) for at in range(start, stop, max(1, step))]
    return tiles


def cut(x: Array, rows: slice, columns: slice) -> Array:
    """A block of a mask or bias, whose axes of 1 stay as they are (SHAPE-8)."""
    everything = slice(None)
    return x[..., everything if x.shape[-2] == 1 else rows, everything if x.shape[-1] == 1 else columns]


def visible_in(
    xp: Any, options: Options, sizes: Sizes, band: Band, rows: slice, columns: slice, like: Array
) -> Array | None:
    """What a block of rows may attend: bool, broadcasting to (..., H, rows, columns); None for everything."""
    masked = masked_in(xp, options, sizes, band, rows, columns, like)
    if options.attn_bias is None:
        return masked
    biased = cut(options.attn_bias, rows, columns) != -math.inf  # ATT-8
    return biased if masked is None else xp.logical_and(masked, biased)


def masked_in(
    xp: Any, options: Options, sizes: Sizes, band: Band, rows: slice, columns: slice, like: Array
) -> Array | None:
    """The same by all but the bias, which hides by itself where it is added."""
    masks = [] if options.mask is None else [cut(options.mask, rows, columns)]
    free = free_columns(band, columns, rows)
    if options.q_segments is not None:
        masks.append(_same_segment(options.q_segments, options.kv_segments, rows, columns))
    if free != columns or options.kv_lengths is not None:
        masks += _positional(xp, options, sizes, band, rows, columns, like)
    return functools.reduce(xp.logical_and, masks) if masks else None


def reached_in(
    xp: Any, options: Options, sizes: Sizes, blocks: list[slice], like: Array
) -> tuple[Array | None, Array | None]:
    """Which rows see a key, (..., H, q_len, 1), and which keys a row sees, (..., G, kv_len, 1).

    Bool, broadcasting to those shapes; None for all.
    """
    band, columns = band_of(xp, options, sizes, like), slice(0, sizes.kv_len)
    rows_that_see, keys_seen = [], []
    for rows in blocks:
        visible = visible_in(xp, options, sizes, band, rows, columns, like)
        if visible is None:
            if sizes.q_len and sizes.kv_len:
                return None, None
            visible = xp.reshape(arange(xp, 0, 1, like) == 0, (1, 1))
        shape = (*visible.shape[:-2], rows.stop - rows.start, sizes.kv_len)
        visible = xp.broadcast_to(visible, shape)
        rows_that_see.append(xp.any(visible, axis=-1, keepdims=True))
        keys_seen.append(xp.expand_dims(xp.any(visible, axis=-2), axis=-1))
    keys = functools.reduce(xp.logical_or, keys_seen)
    if len(keys.shape) > 2 and keys.shape[-3] > 1:  # each query head has its own
        group = sizes.num_heads // sizes.num_kv_heads
        keys = xp.reshape(keys, (*keys.shape[:-3], sizes.num_kv_heads, group, *keys.shape[-2:]))
        keys = xp.any(keys, axis=-3)
    return xp.concat(rows_that_see, axis=-2), keys


def _positional(
    xp: Any, options: Options, sizes: Sizes, band: Band, rows: slice, columns: slice, like: Array
) -> list[Array]:
    """The masks that come from where a query and a key stand."""
    if band.low is None and band.high is None and options.kv_lengths is None:
        return []
    i = xp.reshape(chunked_as_rows(arange(xp, rows.start, rows.stop, like), like), (-1, 1))
    j = xp.reshape(arange(xp, columns.start, columns.stop, like), (1, -1))
    masks = []
    if band.low is not None:
        masks.append(j >= i + band.low)  # no array of numbers as large as the mask
    if band.high is not None:
        masks.append(j <= i + band.high)
    if options.kv_lengths is not None:
        masks.append(j < _per_entry(xp, options.kv_lengths, sizes, j.dtype))  # MASK-12
    return masks


def _same_segment(q: Array, kv: Array, rows: slice, columns: slice) -> Array:
    """Which keys have the number of the query: (rows, columns) or (..., 1, rows, columns) (MASK-17)."""
    q, kv = q[..., rows], kv[..., columns]
    q = q[:, None] if len(q.shape) == 1 else q[..., None, :, None]
    return q == (kv[None, :] if len(kv.shape) == 1 else kv[..., None, None, :])


def _per_entry(xp: Any, x: Array, sizes: Sizes, dtype: Any) -> Array:
    """One number per batch entry, (...), against the logits: (..., 1, 1, 1)."""
    return cast(xp, x if x.shape == () else xp.reshape(x, (*sizes.batch, 1, 1, 1)), dtype)
