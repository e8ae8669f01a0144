"""The multi-head attention layer: projections, attention, projection."""

from collections.abc import Sequence
from typing import Any

from mha_core.arrays import quiet
from mha_core.attend import attend
from mha_core.checks import check_operands, check_options, layer_sizes
from mha_core.heads import result_of, with_past
from mha_core.jax_at_once import Operands, at_once
from mha_core.options import Options, Sizes
from mha_core.projections import BIASES, WEIGHTS, heads_of, joined, reached_tokens
from mha_core.remembered import passed
from mha_core.result import Array, AttentionResult


def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    mask: Array | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    q_offset: int | Array | None = None,
    window: Sequence[int | None] | None = None,
    kv_lengths: Array | None = None,
    q_segments: Array | None = None,
    kv_segments: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Array | AttentionResult:
    """Attention of projected heads, projected back: sum over h of head_h @ w_o[h], plus b_o (PROJ-1, PROJ-3).

    Every option acts on the projected heads as in `scaled_dot_product_attention` (PROJ-7); `past_key`,
    `past_value` and what is returned of them are projected heads too. 16-bit operands are computed in float32
    throughout and rounded once (NUM-3).

    Args:
        query: (..., q_len, d_q).
        key: (..., kv_len, d_kv).
        value: (..., kv_len, d_vv).
        w_q: (H, d_q, d_k), the weights W^Q of the heads, stacked; heads are `query @ w_q[h]`.
        w_k: (G, d_kv, d_k).
        w_v: (G, d_vv, d_v).
        w_o: (H, d_v, d_out), the rows of W^O that belong to each head.
        b_q: (H, d_k), added to the projected query; so the others, each optional (PROJ-2).
        b_k: (G, d_k).
        b_v: (G, d_v).
        b_o: (d_out,), added to an empty row too (PROJ-4).
        mask: see `scaled_dot_product_attention`, as for all that follow.
        attn_bias: see there.
        is_causal: see there.
        q_offset: see there.
        window: see there.
        kv_lengths: see there.
        q_segments: see there.
        kv_segments: see there.
        scale: see there.
        softcap: see there.
        sinks: see there.
        past_key: (..., G, past, d_k).
        past_value: (..., G, past, d_v).
        return_weights: see there.
        return_lse: see there.

    Returns:
        The output, (..., q_len, d_out).
        With return_weights, return_lse or a past: an AttentionResult.

    Raises:
        TypeError: something is no array, of another library, or of a wrong dtype (DTYPE-2 to DTYPE-5).
        ValueError: shapes disagree or an option is wrong (SHAPE-5 to SHAPE-11, PROJ-6, HEAD-3, MASK-7,
            CACHE-5).

    >>> import numpy as np
    >>> x = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    >>> one, two = np.ones((1, 2, 1)), 2 * np.ones((1, 1, 3))
    >>> multi_head_attention(x, x, x, w_q=one, w_k=one, w_v=one, w_o=two, b_o=np.ones(3))
    array([[3., 3., 3.],
           [3., 3., 3.]])
    """
    options = Options(
        mask=mask,
        attn_bias=attn_bias,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        kv_lengths=kv_lengths,
        q_segments=q_segments,
        kv_segments=kv_segments,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        past_key=past_key,
        past_value=past_value,
        return_weights=return_weights,
        return_lse=return_lse,
    )
    operands = (query, key, value, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)
    xp, sizes = passed(_checked, operands, options)
    return at_once(_attended, xp, operands, options, sizes)


def _attended(xp: Any, operands: Operands, options: Options, sizes: Sizes) -> Any:
    """What a layer returns that nothing is wrong with."""
    inputs, weights, w_o, biases, b_o = operands[:3], operands[3:6], operands[6], operands[7:10], operands[10]
    past_key, past_value = options.past_key, options.past_value
    with quiet(xp):
        reached = reached_tokens(xp, inputs, options, sizes)
        query_heads, key_heads, value_heads = heads_of(xp, inputs, weights, biases, reached)
        key_heads, value_heads = with_past(xp, past_key, key_heads), with_past(xp, past_value, value_heads)
        result = attend(xp, query_heads, key_heads, value_heads, options, sizes)
        output = joined(xp, result.output, w_o, b_o)
        result = AttentionResult(output, result.weights, result.lse)
        if past_key is not None and any(
            x is not None for x in reached
        ):  # what is hidden is present all the same
            _, key_heads, value_heads = heads_of(xp, inputs, weights, biases, (None, None, None))
            key_heads, value_heads = (
                with_past(xp, past_key, key_heads),
                with_past(xp, past_value, value_heads),
            )
        return result_of(xp, result, key_heads, value_heads, inputs[0].dtype, options)


def _checked(query: Array, key: Array, value: Array, *others: Any) -> tuple[Any, Sizes]:
    """The namespace and sizes of a layer that nothing is wrong with; others: weights, biases, options."""
    *parameters, options = others
    weights = dict(zip(WEIGHTS, parameters[:4], strict=True))
    biases = dict(zip(BIASES, parameters[4:], strict=True))
    past = {"past_key": options.past_key, "past_value": options.past_value}
    xp = check_operands(
        {"query": query, "key": key, "value": value, **weights}, {**biases, **past, "sinks": options.sinks}
    )
    sizes = layer_sizes(query, key, value, weights, biases, options)
    check_options(query, options, sizes)
    return xp, sizes
