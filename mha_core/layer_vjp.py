"""The gradients of the multi-head attention layer."""

from collections.abc import Sequence
from typing import Any

from mha_core.arrays import cast, compute_dtype, quiet
from mha_core.attend_vjp import attend_vjp
from mha_core.checks import check_grad_lse, check_grad_output, check_operands, check_options, layer_sizes
from mha_core.heads import with_past, without_past
from mha_core.jax_at_once import Operands, at_once
from mha_core.options import Options, Sizes
from mha_core.projections import (
    BIASES,
    WEIGHTS,
    heads_of,
    joined,
    outer,
    over_tokens,
    projected,
    reached_tokens,
    tokens_of,
)
from mha_core.result import Array


def multi_head_attention_vjp(
    query: Array,
    key: Array,
    value: Array,
    grad_output: Array,
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
    grad_lse: Array | None = None,
) -> dict[str, Array]:
    """The gradients of sum(grad_output * output), output being `multi_head_attention`'s (GRAD-1, GRAD-10).

    As `scaled_dot_product_attention_vjp`, through the projections; nothing is rounded between (NUM-3).

    Args:
        query: see `multi_head_attention`, as for all but grad_output.
        key: see there.
        value: see there.
        grad_output: (..., q_len, d_out), of the operands' dtype.
        w_q: see there.
        w_k: see there.
        w_v: see there.
        w_o: see there.
        b_q: see there.
        b_k: see there.
        b_v: see there.
        b_o: see there.
        mask: see there.
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
        past_key: see there; its keys take part, and get no gradient (GRAD-13).
        past_value: see there.
        grad_lse: (..., H, q_len), the gradient of the lse, of its dtype or the operands' (GRAD-16).

    Returns:
        A gradient by the name of its argument, in its shape and dtype: of query, key, value, w_q, w_k, w_v, w_o,
        and of b_q, b_k, b_v, b_o, attn_bias and sinks where they are given (GRAD-2).

    Raises:
        TypeError: what `multi_head_attention` raises, or grad_output or grad_lse of another dtype (GRAD-14).
        ValueError: what it raises, or grad_output or grad_lse of another shape (GRAD-14).

    >>> import numpy as np
    >>> x, one = np.asarray([[1.0], [3.0]]), np.ones((1, 1, 1))
    >>> gradients = multi_head_attention_vjp(x[:1], x, x, x[:1], w_q=0 * one, w_k=one, w_v=one, w_o=one)
    >>> {name: d.tolist() for name, d in gradients.items() if name in ("query", "value", "w_v")}
    {'query': [[0.0]], 'value': [[0.5], [0.5]], 'w_v': [[[2.0]]]}
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
    )
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    xp = check_operands(
        {"query": query, "key": key, "value": value, **weights},
        {**biases, "past_key": past_key, "past_value": past_value, "sinks": sinks},
    )
    sizes = layer_sizes(query, key, value, weights, biases, options)
    check_options(query, options, sizes)
    check_grad_output(grad_output, query, (*query.shape[:-1], w_o.shape[-1]))
    check_grad_lse(xp, grad_lse, query, sizes.output[:-1])
    operands = (query, key, value, *weights.values(), *biases.values(), grad_output, grad_lse)
    gradients: dict[str, Array] = at_once(_gradients, xp, operands, options, sizes)
    return gradients


def _gradients(xp: Any, operands: Operands, options: Options, sizes: Sizes) -> dict[str, Array]:
    """The gradients of a layer that nothing is wrong with."""
    *inputs, grad_output, grad_lse = (*operands[:3], *operands[11:])
    weights = dict(zip(WEIGHTS, operands[3:7], strict=True))
    biases = dict(zip(BIASES, operands[7:11], strict=True))
    past_key, past_value = options.past_key, options.past_value
    w_o, dtype = weights["w_o"], compute_dtype(xp, inputs[0].dtype)
    with quiet(xp):
        reached = reached_tokens(xp, (*inputs, grad_output), options, sizes)
        query_heads, key_heads, value_heads = heads_of(xp, inputs, operands[3:6], operands[7:10], reached)
        key_heads, value_heads = with_past(xp, past_key, key_heads), with_past(xp, past_value, value_heads)
        grad = tokens_of(xp, grad_output, None, dtype)
        d_output = projected(xp, grad, xp.matrix_transpose(w_o), None)
        heads = attend_vjp(
            xp,
            query_heads,
            key_heads,
            value_heads,
            d_output,
            options,
            sizes,
            with_output=True,
            grad_lse=grad_lse,
        )
        d_heads = (
            heads.query,
            without_past(past_key, heads.key),
            without_past(past_value, heads.value),
        )
        gradients = {"w_o": outer(xp, heads.output, tokens_of(xp, grad_output, reached[0], dtype))}
        gradients["b_o"] = over_tokens(xp, grad)[0, :]  # (GRAD-11)
        for name, x, marks, d_x in zip(("query", "key", "value"), inputs, reached, d_heads, strict=True):
            w, b = f"w_{name[0]}", f"b_{name[0]}"
            gradients[name] = joined(xp, d_x, xp.matrix_transpose(weights[w]), None)
            gradients[w] = outer(xp, tokens_of(xp, x, marks, dtype), d_x)
            gradients[b] = over_tokens(xp, d_x)
        given = {name for name in gradients if name not in biases or biases[name] is not None}
        gradients = {name: cast(xp, x, inputs[0].dtype) for name, x in gradients.items() if name in given}
        return gradients | heads.of_options(xp, options)
