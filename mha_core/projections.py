"""Between tokens and heads: the projections of the layer, and the sums that their derivatives need.

The derivative of `projected` by its tokens is `joined` by the transposed weights, and the other way round.
"""

import math
from typing import Any

from mha_core.arrays import cast, known_finite
from mha_core.result import Array


def projected(xp: Any, x: Array, w: Array, b: Array | None, dtype: Any) -> Array:
    """The heads of (..., n, d_in) by (heads, d_in, d): (..., heads, n, d)."""
    heads = xp.matmul(xp.expand_dims(cast(xp, x, dtype), axis=-3), cast(xp, w, dtype))
    return heads if b is None else heads + xp.expand_dims(cast(xp, b, dtype), axis=-2)


def joined(xp: Any, heads: Array, w: Array, b: Array | None) -> Array:
    """The heads (..., H, n, d) side by side, (..., n, H * d), times the stacked (H * d, d_out)."""
    stacked = xp.reshape(cast(xp, w, heads.dtype), (w.shape[0] * w.shape[1], w.shape[2]))
    output = xp.matmul(_side_by_side(xp, heads), stacked)
    return output if b is None else output + cast(xp, b, heads.dtype)


def outer(xp: Any, x: Array, y: Array) -> Array:
    """The sums over batch and tokens of (..., heads or 1, n, a) times (..., heads or 1, n, b): (heads, a, b)."""
    return xp.matmul(xp.matrix_transpose(_by_head(xp, x)), _by_head(xp, y))


def over_tokens(xp: Any, x: Array) -> Array:
    """The sums over batch and tokens of (..., heads, n, d): (heads, d)."""
    return xp.sum(_by_head(xp, x), axis=-2)


def reaching(xp: Any, x: Array, reached: Array | None, dtype: Any) -> Array:
    """Tokens (..., n, d), for each head or for all alike, (..., heads or 1, n, d), 0 where not reached (GRAD-9)."""
    x = xp.expand_dims(cast(xp, x, dtype), axis=-3)
    return x if reached is None or known_finite(xp, x) else xp.where(reached, x, 0.0)


def _side_by_side(xp: Any, heads: Array) -> Array:
    """The heads (..., H, n, d) as (..., n, H * d)."""
    side_by_side = xp.moveaxis(heads, -3, -2)
    *outer, num_heads, d = side_by_side.shape
    return xp.reshape(side_by_side, (*outer, num_heads * d))


def _by_head(xp: Any, x: Array) -> Array:
    """(..., heads, n, d) as (heads, tokens of all batch entries, d)."""
    x = xp.moveaxis(x, -3, 0)
    return xp.reshape(x, (x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1]))
