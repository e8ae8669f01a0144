"""The algorithm: scaled, capped, biased and masked logits; a safe softmax; the weighted mean of the values.

The heads are brought to the dtype to compute in first; the past lies in front of the keys already.
The query heads that share a key are merged with the query rows, (..., H, n, d) as (..., G, H // G * n, d),
so that no key is ever repeated (HEAD-2).
"""

import math
from typing import Any

from mha_core.arrays import cast, cast_bias, compute_dtype, device, is_traced, quiet
from mha_core.options import Options, Sizes
from mha_core.result import Array, AttentionResult
from mha_core.values import Values, add_nonfinite, split_values
from mha_core.visibility import Band, band_of, columns_of, cut, visible_in

BLOCK_ELEMENTS = 2**19
"""Logits to hold at a time where the weights are not asked for: 2 MiB in float32."""
BLOCK_ROWS = 32
"""Fewest query rows of a block: with fewer the matrix products are slow."""


def attend(
    xp: Any, query: Array, key: Array, value: Array, options: Options, sizes: Sizes
) -> AttentionResult:
    """Output, lse, and the weights where asked for, of heads that passed the checks."""
    scale = 1 / math.sqrt(sizes.d_k) if options.scale is None else float(options.scale)  # ATT-3, ATT-4
    whole = options.return_weights or is_traced(xp, query)
    dtype = compute_dtype(xp, query.dtype)
    with quiet(xp):
        query, key, value = (cast(xp, x, dtype) for x in (query, key, value))
        query = query * scale
        values = split_values(xp, value)
        band = band_of(xp, options, sizes, device(query))
        blocks = [
            _attend_rows(xp, query, key, values, options, sizes, band, rows)
            for rows in _row_blocks(sizes, whole)
        ]
        if len(blocks) == 1:
            return blocks[0]
        output = xp.concat([block.output for block in blocks], axis=-2)
        return AttentionResult(output, lse=xp.concat([block.lse for block in blocks], axis=-1))


def _row_blocks(sizes: Sizes, whole: bool) -> list[slice]:
    """The query rows in blocks whose logits fit the budget, or all as one."""
    row_elements = math.prod(sizes.batch) * sizes.num_heads * sizes.kv_len
    if whole or row_elements * sizes.q_len <= BLOCK_ELEMENTS:
        return [slice(0, sizes.q_len)]
    step = max(BLOCK_ROWS, BLOCK_ELEMENTS // row_elements)
    return [slice(start, min(start + step, sizes.q_len)) for start in range(0, sizes.q_len, step)]


def _attend_rows(
    xp: Any,
    query: Array,
    key: Array,
    values: Values,
    options: Options,
    sizes: Sizes,
    band: Band,
    rows: slice,
) -> AttentionResult:
    """A block of query rows, each with its whole softmax."""
    columns = slice(0, sizes.kv_len) if options.return_weights else columns_of(band, sizes, rows)
    query, key, values = query[..., rows, :], key[..., columns, :], values.at(columns)
    visible = visible_in(xp, options, sizes, band, rows, columns, device(query))
    block = (*sizes.batch, sizes.num_heads, rows.stop - rows.start)
    if columns.start == columns.stop:
        weights, lse = _softmax_of_nothing(xp, block, query)  # MASK-14
    else:
        logits = xp.matmul(_grouped(xp, query, sizes), xp.matrix_transpose(key))
        logits = xp.reshape(logits, (*block, columns.stop - columns.start))
        weights, lse = _softmax(xp, *_logits_and_sinks(xp, logits, options, rows, columns), visible)
    output = xp.matmul(_grouped(xp, weights, sizes), values.finite)  # (..., G, H // G * rows, d_v)
    output = add_nonfinite(xp, xp.reshape(output, (*block, sizes.d_v)), values, visible, sizes)
    return AttentionResult(output, weights if options.return_weights else None, lse)


def _grouped(xp: Any, x: Array, sizes: Sizes) -> Array:
    """(..., H, n, d) as (..., G, H // G * n, d)."""
    group = sizes.num_heads // sizes.num_kv_heads
    return xp.reshape(x, (*sizes.batch, sizes.num_kv_heads, group * x.shape[-2], x.shape[-1]))


def _logits_and_sinks(
    xp: Any, logits: Array, options: Options, rows: slice, columns: slice
) -> tuple[Array, Array | None]:
    """Capped and biased logits, (..., H, rows, columns), and the sinks as one more column (ATT-6)."""
    if options.softcap is not None:
        cap = float(options.softcap)
        logits = cap * xp.tanh(logits / cap)  # ATT-5
    if options.attn_bias is not None:
        logits = logits + cast_bias(xp, cut(options.attn_bias, rows, columns), logits.dtype)  # ATT-7
    if options.sinks is None:
        return logits, None
    return logits, xp.reshape(cast(xp, options.sinks, logits.dtype), (-1, 1, 1))


def _softmax(xp: Any, logits: Array, sinks: Array | None, visible: Array | None) -> tuple[Array, Array]:
    """Weights over the visible keys, and the log of their denominator (ATT-2, ATT-14)."""
    if visible is not None:
        logits = xp.where(visible, logits, -math.inf)  # selected, so that a masked NaN is gone (MASK-4)
    highest = xp.max(logits, axis=-1, keepdims=True)  # (..., H, rows, 1)
    if sinks is not None:
        highest = xp.maximum(highest, sinks)
    countable = highest != -math.inf
    if visible is not None:
        occupied = xp.any(visible, axis=-1, keepdims=True)  # decided on masks alone (MASK-15)
        countable = xp.logical_and(countable, occupied)
    highest = xp.where(countable, highest, 0.0)
    exponentials = xp.exp(logits - highest)
    total = xp.sum(exponentials, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + xp.exp(sinks - highest)  # ATT-12
    lse = highest + xp.log(total)
    if visible is not None:
        total = xp.where(occupied, total, 1.0)  # MASK-3
        lse = xp.where(occupied, lse, -math.inf)  # MASK-13
    return exponentials / total, lse[..., 0]


def _softmax_of_nothing(xp: Any, block: tuple[int, ...], like: Array) -> tuple[Array, Array]:
    """Weights over no key, and the lse of empty rows."""
    weights = xp.zeros((*block, 0), dtype=like.dtype, device=device(like))
    return weights, xp.full(block, -math.inf, dtype=like.dtype, device=device(like))
