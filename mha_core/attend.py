"""The algorithm: scaled, capped, biased and masked logits; a safe softmax; the weighted mean of the values.

The heads are brought to the dtype to compute in first; the past lies in front of the keys already.
The query heads that share a key are merged with the query rows, (..., H, n, d) as (..., G, H // G * n, d),
so that no key is ever repeated (HEAD-2).
"""

import math
from typing import Any

from mha_core.arrays import cast, compute_dtype, device, is_traced, known_finite, quiet
from mha_core.options import Options, Sizes, scale_of
from mha_core.result import Array, AttentionResult
from mha_core.softmax import attended, means, scores
from mha_core.values import Values, add_nonfinite, split_values
from mha_core.visibility import Band, band_of, columns_of, visible_in

BLOCK_ELEMENTS = 2**19
"""Logits to hold at a time where the weights are not asked for: 2 MiB in float32."""
BLOCK_ROWS = 32
"""Fewest query rows of a block: with fewer the matrix products are slow."""


def attend(
    xp: Any, query: Array, key: Array, value: Array, options: Options, sizes: Sizes
) -> AttentionResult:
    """Output, lse, and the weights where asked for, of heads that passed the checks."""
    whole = options.return_weights or is_traced(xp, query)
    dtype = compute_dtype(xp, query.dtype)
    with quiet(xp):
        query, key, value = (cast(xp, x, dtype) for x in (query, key, value))
        query = query * scale_of(options, sizes)
        values = split_values(xp, value)
        band = band_of(xp, options, sizes, device(query))
        blocks = [
            _attend_rows(xp, query, key, values, options, sizes, band, rows)
            for rows in row_blocks(sizes, whole)
        ]
        if len(blocks) == 1:
            return blocks[0]
        output = xp.concat([block.output for block in blocks], axis=-2)
        return AttentionResult(output, lse=xp.concat([block.lse for block in blocks], axis=-1))


def row_blocks(sizes: Sizes, whole: bool) -> list[slice]:
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
    soft, _ = attended(xp, scores(xp, query, key, sizes, visible), options, visible, rows, columns)
    output = means(xp, soft.weights, values.finite, sizes)
    if visible is not None and not known_finite(xp, output):  # a row of NaN gives none to what it cannot see
        output = means(xp, xp.where(visible, soft.weights, 0.0), values.finite, sizes)
    if soft.occupied is not None:
        output = xp.where(soft.occupied, output, 0.0)  # it is 0 already, and so is its derivative (GRAD-4)
    output = add_nonfinite(xp, output, values, visible, sizes)
    return AttentionResult(output, soft.weights if options.return_weights else None, soft.lse)
