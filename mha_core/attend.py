"""The algorithm: scaled, capped, biased and masked logits; a safe softmax; the weighted mean of the values.

The heads are brought to the dtype to compute in first; the past lies in front of the keys already.
The query heads that share a key are merged with the query rows, (..., H, n, d) as (..., G, H // G * n, d),
so that no key is ever repeated (HEAD-2). `parts` cuts what is large, `tiles` computes a part fast and says when
it cannot be trusted; NaN, Inf, empty rows, weights, traced arrays and those that record a gradient take the
exact way, which is here and of which every derivative is right too (GRAD-9).
"""

import math
from typing import Any

from mha_core.arrays import cast, compute_dtype, is_traced, known_finite
from mha_core.fused import fused_output
from mha_core.options import Options, Sizes, scale_of
from mha_core.parts import Part, entry_parts, is_small, unit_parts
from mha_core.result import Array, AttentionResult
from mha_core.softmax import attended, means, scores
from mha_core.tiles import Evidence, attend_tiles, tiles_of
from mha_core.values import Values, add_nonfinite, split_values
from mha_core.visibility import Band, band_of, columns_of, visible_in

BLOCK_ELEMENTS = 2**19
"""Logits to hold at a time on the exact way where the weights are not asked for: 2 MiB in float32."""
BLOCK_ROWS = 32
"""Fewest query rows of a block: with fewer the matrix products are slow."""


def attend(
    xp: Any, query: Array, key: Array, value: Array, options: Options, sizes: Sizes
) -> AttentionResult:
    """Output, lse, and the weights where asked for, of heads that passed the checks; the caller is `quiet`."""
    dtype = compute_dtype(xp, query.dtype)
    whole = options.return_weights or is_traced(xp, query)
    fused = None if whole else fused_output(xp, query, key, value, options, sizes)
    if fused is not None:
        return AttentionResult(fused)
    part = Part(cast(xp, query, dtype), cast(xp, key, dtype), cast(xp, value, dtype), options, sizes)
    if whole or part.records:
        return _attend_exactly(xp, part, slice(0, sizes.q_len), whole)
    return _attend_parts(xp, part, Evidence())


def row_blocks(sizes: Sizes, whole: bool) -> list[slice]:
    """The query rows in blocks whose logits fit the budget, or all as one."""
    row_elements = math.prod(sizes.batch) * sizes.num_heads * sizes.kv_len
    if whole or row_elements * sizes.q_len <= BLOCK_ELEMENTS:
        return [slice(0, sizes.q_len)]
    step = max(BLOCK_ROWS, BLOCK_ELEMENTS // row_elements)
    return [slice(start, min(start + step, sizes.q_len)) for start in range(0, sizes.q_len, step)]


def _attend_parts(xp: Any, part: Part, evidence: Evidence) -> AttentionResult:
    """Parts along the batch until they are small, or of one entry, and then by heads and rows."""
    if is_small(part.sizes):
        rows = slice(0, part.sizes.q_len)
        result = attend_tiles(xp, part, rows, tiles_of(xp, part, rows), evidence)
        return _attend_exactly(xp, part, rows) if result is None else result
    if part.sizes.batch:
        results = [_attend_parts(xp, entry, evidence) for entry in entry_parts(part)]
        return _joined(xp, results, 0, new=len(results[0].output.shape) < len(part.sizes.output))
    blocks = []
    for rows, units in unit_parts(xp, part):
        tiles, results = None, []
        for unit in units:
            if tiles is None or unit.own_masks:
                tiles = tiles_of(xp, unit, rows)
            result = attend_tiles(xp, unit, rows, tiles, evidence)
            results.append(_attend_exactly(xp, unit, rows) if result is None else result)
        blocks.append(_joined(xp, results, -3))
    return _joined(xp, blocks, -2)


def _joined(xp: Any, results: list[AttentionResult], axis: int, new: bool = False) -> AttentionResult:
    """Results side by side along an axis of the output, or along a new one."""
    if len(results) == 1 and not new:
        return results[0]
    join = xp.stack if new else xp.concat
    outputs, lses = [result.output for result in results], [result.lse for result in results]
    missing = any(lse is None for lse in lses)  # not asked for, though the exact way has it
    lse = None if missing else join(lses, axis=axis + 1 if axis < 0 else axis)
    return AttentionResult(join(outputs, axis=axis), lse=lse)


def _attend_exactly(xp: Any, part: Part, rows: slice, whole: bool = False) -> AttentionResult:
    """Some query rows of a part, whatever it holds, each with its whole softmax."""
    sizes, options = part.sizes, part.options
    query = part.query * scale_of(options, sizes)
    values = split_values(xp, part.value)
    band = band_of(xp, options, sizes, query)
    results = [
        _attend_rows(xp, query, part.key, values, options, sizes, band, block)
        for block in _blocks_within(sizes, rows, whole)
    ]
    return results[0] if len(results) == 1 else _joined(xp, results, -2)


def _blocks_within(sizes: Sizes, rows: slice, whole: bool) -> list[slice]:
    """The blocks of some of the query rows."""
    some = row_blocks(sizes.with_rows(rows.stop - rows.start), whole)
    return [slice(rows.start + block.start, rows.start + block.stop) for block in some]


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
    visible = visible_in(xp, options, sizes, band, rows, columns, query)
    soft, _ = attended(xp, scores(xp, query, key, sizes, visible), options, visible, rows, columns)
    output = means(xp, soft.weights, values.finite, sizes)
    if visible is not None and not known_finite(xp, output):  # a row of NaN gives none to what it cannot see
        output = means(xp, xp.where(visible, soft.weights, 0.0), values.finite, sizes)
    if soft.occupied is not None:
        output = xp.where(soft.occupied, output, 0.0)  # it is 0 already, and so is its derivative (GRAD-4)
    output = add_nonfinite(xp, output, values, visible, sizes)
    return AttentionResult(output, soft.weights if options.return_weights else None, soft.lse)
