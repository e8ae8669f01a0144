"""The gradients of some heads, computed by NumPy in place where their logits are shown to be small.

Rows in blocks, each with all keys that it sees. P being the weights, dP = grad @ value^T and Delta the sum of P * dP
over the keys, the gradient of a logit is P * (dP - Delta) (GRAD-1). What is hidden has a weight of 0, a gradient of 0.
NaN and Inf, even behind a mask, show in the bound or in a gradient.
"""

import math
from typing import Any

from mha_core.arrays import writes_in_place
from mha_core.head_gradients import HeadGradients
from mha_core.heads import grouped, ungrouped
from mha_core.options import Sizes, scale_of
from mha_core.parts import Part
from mha_core.result import Array
from mha_core.weights_in_place import (
    LOG2_E,
    Tile,
    bound_of,
    is_ordinary,
    ones,
    scaled,
    sinks_in,
    tiles_of,
    weights_of,
)

BLOCK_ELEMENTS = 2**18
"""Logits of a block of rows, unless that makes it shorter than BLOCK_ROWS."""
BLOCK_ROWS = 64
"""Fewest rows of a block, those of a group's heads counted together."""


def in_place_vjp(
    np: Any, part: Part, grad: Array, with_output: bool, grad_lse: Array | None = None
) -> HeadGradients | None:
    """The gradients, and the output where asked for; None where they cannot be vouched for."""
    options, sizes = part.options, part.sizes
    beyond = options.softcap is not None or options.attn_bias is not None
    if not writes_in_place(np, part.query) or beyond or 0 in sizes.logits:
        return None
    sinks = None if options.sinks is None else sinks_in(np, part)
    if options.sinks is not None and sinks is None:
        return None
    key, value, scale = part.key, part.value, scale_of(options, sizes)
    d_key, d_value = np.zeros(key.shape, dtype=key.dtype), np.zeros(value.shape, dtype=key.dtype)
    d_query = np.zeros(part.query.shape, dtype=key.dtype)
    output = np.zeros(sizes.output, dtype=key.dtype) if with_output else None
    d_sinks = None if sinks is None else np.zeros(sizes.num_heads, dtype=key.dtype)
    for rows in _row_blocks(part):
        some = sizes.with_rows(rows.stop - rows.start)
        tiles = tiles_of(np, part, rows, sizes.kv_len)
        if not tiles:
            if (
                sinks is not None and d_sinks is not None and grad_lse is not None
            ):  # the lse of an empty row is the sink (MASK-16)
                d_sinks += np.where(sinks[:, 0, 0] > 0.0, _by_head(grad_lse[..., rows], some), 0.0)
            continue
        columns = slice(tiles[0].columns.start, tiles[-1].columns.stop)
        query = scaled(np, part, rows)
        weights = _weights(np, query, part, tiles, columns)
        if weights is None:
            return None
        total = np.matmul(weights, ones(np, key.dtype, weights.shape[-1]))
        if sinks is not None:
            all_terms = ungrouped(np, total, some) + sinks  # (..., H, rows, 1)
            dead = all_terms == 0.0  # of an empty row with a sink of -Inf
            drained = sinks / np.where(dead, 1.0, all_terms)
            total = total + grouped(np, np.broadcast_to(sinks, drained.shape), some)
        if options.hides:
            total[total == 0.0] = 1.0  # an empty row (GRAD-4)
        weights /= total
        d_output = grouped(np, np.ascontiguousarray(grad[..., rows, :]), some)
        d_logits = np.matmul(d_output, value[..., columns, :].swapaxes(-1, -2))
        delta = np.einsum("...c,...c->...", weights, d_logits)[..., None]
        if grad_lse is not None:
            delta -= grouped(np, grad_lse[..., rows, None], some)  # GRAD-16
        d_logits -= delta
        d_logits *= weights
        d_query[..., rows, :] = ungrouped(np, np.matmul(d_logits, key[..., columns, :]), some)
        d_key[..., columns, :] += np.matmul(d_logits.swapaxes(-1, -2), query)
        d_value[..., columns, :] += np.matmul(weights.swapaxes(-1, -2), d_output)
        if output is not None:
            output[..., rows, :] = ungrouped(np, np.matmul(weights, value[..., columns, :]), some)
        if d_sinks is not None:
            d_sinks -= _by_head(np.where(dead, 0.0, drained * ungrouped(np, delta, some)), some)
    d_query *= scale
    d_key /= LOG2_E  # the query was multiplied by it
    sums = (d_query, d_key, d_value) if output is None else (d_query, d_key, d_value, output)
    if not all(is_ordinary(np, x) for x in sums):
        return None
    return HeadGradients(d_query, d_key, d_value, None, d_sinks, output)


def _by_head(x: Array, sizes: Sizes) -> Array:
    """The sums of (..., H, rows) or (..., H, rows, 1) over all but the heads, (H,)."""
    sums: Array = x.reshape((-1, sizes.num_heads, sizes.q_len)).sum(axis=(0, 2))
    return sums


def _row_blocks(part: Part) -> list[slice]:
    """The query rows in blocks whose logits the caches hold."""
    sizes = part.sizes
    heads = math.prod(sizes.batch) * sizes.num_heads
    group = sizes.num_heads // sizes.num_kv_heads
    step = max(1, BLOCK_ROWS // group, BLOCK_ELEMENTS // (heads * sizes.kv_len))
    if part.options.is_causal or part.options.window is not None:  # of which fewer rows see fewer keys
        step = min(step, max(1, 2 * BLOCK_ROWS // group))
    return [slice(start, min(start + step, sizes.q_len)) for start in range(0, sizes.q_len, step)]


def _weights(np: Any, query: Array, part: Part, tiles: list[Tile], columns: slice) -> Array | None:
    """The weights of adjacent tiles, not normalised; None where they may overflow."""
    weights = np.empty((*query.shape[:-1], columns.stop - columns.start), dtype=query.dtype)
    bound = bound_of(np, query, part)
    for tile in tiles:
        place = weights[..., tile.columns.start - columns.start : tile.columns.stop - columns.start]
        if weights_of(np, place, query, part, tile, bound) is None:
            return None
    return weights
