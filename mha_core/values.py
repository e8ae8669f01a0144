"""Values that may hold NaN or Inf: a visible one reaches its column of each row that sees it, a masked none.

A matrix product cannot do that, since 0 * NaN is NaN: the product takes the finite values alone,
and the others are added to the rows that see them (ATT-11, MASK-5).
"""

import math
from typing import Any, NamedTuple

from mha_core.arrays import cast, known_finite, product
from mha_core.heads import grouped
from mha_core.options import Sizes
from mha_core.result import Array


class Values(NamedTuple):
    """The values, (..., G, kv_len, d_v), in parts that add up to them."""

    finite: Array
    """The values, 0 where they are not finite."""
    raising: Array | None = None
    """1 where +Inf or NaN, else 0; None where all values are known to be finite."""
    lowering: Array | None = None
    """1 where -Inf or NaN, else 0."""

    def at(self, columns: slice) -> "Values":
        """The values of some keys."""
        if self.raising is None or self.lowering is None:
            return Values(self.finite[..., columns, :])
        return Values(*(x[..., columns, :] for x in (self.finite, self.raising, self.lowering)))


def split_values(xp: Any, value: Array) -> Values:
    """The parts of the values."""
    if known_finite(xp, value):
        return Values(value)
    is_nan = xp.isnan(value)
    raising = xp.logical_or(is_nan, value == math.inf)
    lowering = xp.logical_or(is_nan, value == -math.inf)
    finite = xp.where(xp.logical_or(raising, lowering), 0.0, value)
    return Values(finite, cast(xp, raising, value.dtype), cast(xp, lowering, value.dtype))


def add_nonfinite(xp: Any, output: Array, values: Values, visible: Array | None, sizes: Sizes) -> Array:
    """The output, (..., H, rows, d_v), with +Inf, -Inf or both (NaN) added where visible values hold them."""
    if values.raising is None or values.lowering is None:
        return output
    rows = output.shape[-2]
    group = sizes.num_heads // sizes.num_kv_heads
    sums = xp.reshape(output, (*sizes.batch, sizes.num_kv_heads, group, rows, sizes.d_v))
    sums = xp.where(_seen(xp, values.raising, visible, sizes), sums + math.inf, sums)
    sums = xp.where(_seen(xp, values.lowering, visible, sizes), sums - math.inf, sums)
    return xp.reshape(sums, output.shape)


def add_nonfinite_of_rows(xp: Any, sums: Array, values: Values, visible: Array | None, sizes: Sizes) -> Array:
    """Sums over rows, (..., G, columns, d), with what the rows (..., H, rows, d) that see a key hold added."""
    if values.raising is None or values.lowering is None:
        return sums
    block = (*sizes.batch, sizes.num_heads, values.finite.shape[-2], sums.shape[-2])
    seen = values.raising[..., :1] >= 0  # everything, spread as the rows are
    seen = seen if visible is None else xp.logical_and(seen, visible)
    seen = xp.matrix_transpose(grouped(xp, cast(xp, xp.broadcast_to(seen, block), sums.dtype), sizes))
    sums = xp.where(xp.matmul(seen, grouped(xp, values.raising, sizes)) > 0, sums + math.inf, sums)
    return xp.where(xp.matmul(seen, grouped(xp, values.lowering, sizes)) > 0, sums - math.inf, sums)


def _seen(xp: Any, marks: Array, visible: Array | None, sizes: Sizes) -> Array:
    """Which row sees a mark in which column: bool, broadcastable to (..., G, H // G, rows, d_v)."""
    marks = xp.expand_dims(marks, axis=-3)  # (..., G, 1, kv_len, d_v)
    if visible is None:
        return xp.any(marks != 0, axis=-2, keepdims=True)
    *outer, rows, columns = visible.shape
    if outer:  # (..., H, rows, columns) as (..., G, H // G, rows, columns)
        heads = (1, 1) if outer[-1] == 1 else (sizes.num_kv_heads, sizes.num_heads // sizes.num_kv_heads)
        visible = xp.reshape(visible, (*outer[:-1], *heads, rows, columns))
    visible = xp.broadcast_to(visible, (*visible.shape[:-1], marks.shape[-2]))
    return product(xp, cast(xp, visible, marks.dtype), marks) > 0
