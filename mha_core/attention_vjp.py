"""The gradients of scaled dot-product attention over heads."""

from collections.abc import Sequence
from typing import Any

from mha_core.arrays import cast, quiet
from mha_core.attend_vjp import attend_vjp
from mha_core.checks import check_grad_lse, check_grad_output, check_operands, check_options, head_sizes
from mha_core.heads import with_past, without_past
from mha_core.jax_at_once import Operands, at_once
from mha_core.options import Options, Sizes
from mha_core.result import Array


def scaled_dot_product_attention_vjp(
    query: Array,
    key: Array,
    value: Array,
    grad_output: Array,
    *,
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
    """The gradients of sum(grad_output * output), output being `scaled_dot_product_attention`'s (GRAD-1).

    With grad_lse, those of sum(grad_output * output) + sum(grad_lse * lse) (GRAD-16).

    Finite where the operands are, and exactly 0 where a mask hides (GRAD-3, GRAD-4, GRAD-15), NaN and Inf
    behind it included (GRAD-9). 16-bit operands are computed in float32, sums too, and rounded once (GRAD-12).

    Args:
        query: see `scaled_dot_product_attention`, as for all but grad_output.
        key: see there.
        value: see there.
        grad_output: (..., H, q_len, d_v), of the operands' dtype.
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
        A gradient by the name of its argument, in its shape and dtype: of query, key, value, and of attn_bias
        and sinks where they are given (GRAD-2).

    Raises:
        TypeError: what `scaled_dot_product_attention` raises, or grad_output or grad_lse of another dtype (GRAD-14).
        ValueError: what it raises, or grad_output or grad_lse of another shape (GRAD-14).

    >>> import numpy as np
    >>> query, key = np.asarray([[[1.0]]]), np.asarray([[[1.0], [1.0]]])
    >>> value = np.asarray([[[1.0], [3.0]]])
    >>> gradients = scaled_dot_product_attention_vjp(query, key, value, np.asarray([[[4.0]]]))
    >>> {name: x.tolist() for name, x in gradients.items()}
    {'query': [[[0.0]]], 'key': [[[-2.0], [2.0]]], 'value': [[[2.0], [2.0]]]}
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
    xp = check_operands(
        {"query": query, "key": key, "value": value},
        {"past_key": past_key, "past_value": past_value, "sinks": sinks},
    )
    sizes = head_sizes(query, key, value, options)
    check_options(query, options, sizes)
    check_grad_output(grad_output, query, sizes.output)
    check_grad_lse(xp, grad_lse, query, sizes.output[:-1])
    operands = (query, key, value, grad_output, grad_lse)
    gradients: dict[str, Array] = at_once(_gradients, xp, operands, options, sizes)
    return gradients


def _gradients(xp: Any, operands: Operands, options: Options, sizes: Sizes) -> dict[str, Array]:
    """The gradients of a call that nothing is wrong with."""
    query, key, value, grad_output, grad_lse = operands
    past_key, past_value = options.past_key, options.past_value
    all_keys, all_values = with_past(xp, past_key, key), with_past(xp, past_value, value)
    heads = attend_vjp(xp, query, all_keys, all_values, grad_output, options, sizes, grad_lse=grad_lse)
    gradients = {
        "query": heads.query,
        "key": without_past(past_key, heads.key),
        "value": without_past(past_value, heads.value),
    }
    with quiet(xp):  # a gradient may be beyond what 16 bits hold
        gradients = {name: cast(xp, x, query.dtype) for name, x in gradients.items()}
        return gradients | heads.of_options(xp, options)
