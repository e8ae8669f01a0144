"""Between tokens and heads: the projections of the layer, and the sums that their derivatives need.

The derivative of `projected` by its tokens is `joined` by the transposed weights, and the other way round.
"""

import math
from collections.abc import Sequence
from typing import Any

from mha_core.arrays import cast, compute_dtype, is_traced, known_finite, product
from mha_core.heads import without_past
from mha_core.options import Options, Sizes
from mha_core.parts import row_blocks
from mha_core.result import Array
from mha_core.visibility import reached_in

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")
LARGE = 2**14
"""Elements from which one product for all heads is worth the rearranging."""


def tokens_of(xp: Any, x: Array, reached: Array | None, dtype: Any) -> Array:
    """Tokens (..., n, d_in) for each head, or for all alike, (..., heads or 1, n, d_in), 0 where not reached."""
    x = cast(xp, x, dtype)[..., None, :, :]
    return x if reached is None else xp.where(reached, x, 0.0)


def projected(xp: Any, tokens: Array, w: Array, b: Array | None) -> Array:
    """The heads of (..., heads or 1, n, d_in) by (heads, d_in, d): (..., heads, n, d)."""
    w = cast(xp, w, tokens.dtype)
    if tokens.shape[-3] == 1 and math.prod(tokens.shape) >= LARGE and not is_traced(xp, tokens):
        heads = _at_once(xp, tokens[..., 0, :, :], w)
    else:
        heads = product(xp, tokens, w)
    return heads if b is None else heads + cast(xp, b, tokens.dtype)[..., None, :]


def heads_of(
    xp: Any,
    inputs: Sequence[Array],
    weights: Sequence[Array],
    biases: Sequence[Array | None],
    reached: Sequence[Array | None],
) -> list[Array]:
    """The heads of query, key and value, in the dtype to compute in; weights and biases in the same order."""
    dtype = compute_dtype(xp, inputs[0].dtype)
    return [
        projected(xp, tokens_of(xp, x, marks, dtype), w, b)
        for x, w, b, marks in zip(inputs, weights, biases, reached, strict=True)
    ]


def reached_tokens(
    xp: Any, tokens: Sequence[Array], options: Options, sizes: Sizes
) -> tuple[Array | None, Array | None, Array | None]:
    """Which tokens of query, key and value see or are seen, (..., heads, n, 1); None for all.

    None as well where all that is multiplied with them is known to be finite: then 0 times them is 0.
    """
    if not options.hides and sizes.q_len and sizes.kv_len:
        return None, None, None
    if all(known_finite(xp, x) for x in tokens):
        return None, None, None
    blocks = row_blocks(sizes, is_traced(xp, tokens[0]))
    rows, keys = reached_in(xp, options, sizes, blocks, tokens[0])
    keys = None if keys is None else without_past(options.past_key, keys)
    return rows, keys, keys


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


def _side_by_side(xp: Any, heads: Array) -> Array:
    """The heads (..., H, n, d) as (..., n, H * d)."""
    side_by_side = _swapped(xp, heads)
    *outer, num_heads, d = side_by_side.shape
    return xp.reshape(side_by_side, (*outer, num_heads * d))


def _at_once(xp: Any, x: Array, w: Array) -> Array:
    """The heads of tokens (..., n, d_in) by (heads, d_in, d), by one product: (..., heads, n, d)."""
    num_heads, d_in, d = w.shape
    flat = xp.matmul(x, xp.reshape(_swapped(xp, w), (d_in, num_heads * d)))
    return _swapped(xp, xp.reshape(flat, (*x.shape[:-1], num_heads, d)))


def _swapped(xp: Any, x: Array) -> Array:
    """The axes before the last one swapped, heads with tokens."""
    last = len(x.shape) - 1
    return xp.permute_dims(x, (*range(last - 2), last - 1, last - 2, last))


def _by_head(xp: Any, x: Array) -> Array:
    """(..., heads, n, d) as (heads, tokens of all batch entries, d)."""
    x = xp.moveaxis(x, -3, 0)
    return xp.reshape(x, (x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1]))
