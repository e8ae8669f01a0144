"""The algorithm: scaled, capped, biased and masked logits; a safe softmax; the weighted sums of the values.

Whatever the operands hold: NaN, Inf, empty rows. Arrays may be traced, and every derivative is right too (GRAD-9).
The query heads that share a key are merged with the query rows, (..., H, n, d) as (..., G, H // G * n, d),
so that no key is ever repeated (HEAD-2).
"""

from typing import Any

from mha_core.arrays import known_finite
from mha_core.options import scale_of
from mha_core.parts import Part, row_blocks
from mha_core.result import Array, AttentionResult
from mha_core.softmax import attended, logits_of, weighted_sums
from mha_core.values import Values, add_nonfinite, split_values
from mha_core.visibility import Band, band_of, columns_of, visible_in


def exact(xp: Any, part: Part, rows: slice, whole: bool = False) -> AttentionResult:
    """Some query rows of a part, each with its whole softmax; at once where `whole`."""
    query = part.query[..., rows, :] * scale_of(part.options, part.sizes)
    values = split_values(xp, part.value)
    blocks = row_blocks(part.sizes.with_rows(rows.stop - rows.start), whole)
    results = [
        attend_rows(
            xp, query[..., block, :], values, part, slice(rows.start + block.start, rows.start + block.stop)
        )
        for block in blocks
    ]
    if len(results) == 1:
        return results[0]
    return AttentionResult(
        xp.concat([result.output for result in results], axis=-2),
        lse=xp.concat([result.lse for result in results], axis=-1),
    )


def attend_rows(
    xp: Any, query: Array, values: Values, part: Part, rows: slice, band: Band | None = None
) -> AttentionResult:
    """A block of scaled query rows, each with its whole softmax, in the band of the part unless one is given."""
    options, sizes = part.options, part.sizes
    band = band_of(xp, options, sizes, query) if band is None else band
    columns = slice(0, sizes.kv_len) if options.return_weights else columns_of(band, sizes, rows)
    key, values = part.key[..., columns, :], values.at(columns)
    visible = visible_in(xp, options, sizes, band, rows, columns, query)
    soft, _ = attended(xp, logits_of(xp, query, key, sizes, visible), options, visible, rows, columns)
    output = weighted_sums(xp, soft.weights, values.finite, sizes)
    if visible is not None and not known_finite(xp, output):  # a row of NaN gives none to what it cannot see
        output = weighted_sums(xp, xp.where(visible, soft.weights, 0.0), values.finite, sizes)
    if soft.occupied is not None:
        output = xp.where(soft.occupied, output, 0.0)  # it is 0 already, and so is its derivative (GRAD-4)
    output = add_nonfinite(xp, output, values, visible, sizes)
    return AttentionResult(output, soft.weights if options.return_weights else None, soft.lse)
