"""Scaled dot-product attention over heads."""

from collections.abc import Sequence
from typing import Any

from mha_core.arrays import quiet
from mha_core.attend import attend
from mha_core.checks import check_operands, check_options, head_sizes
from mha_core.heads import result_of, with_past
from mha_core.jax_at_once import Operands, at_once
from mha_core.options import Options, Sizes
from mha_core.remembered import passed
from mha_core.result import Array, AttentionResult


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
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
    return_weights: bool = False,
    return_lse: bool = False,
) -> Array | AttentionResult:
    """The mean of the values that each query may attend, weighted by softmax(scale * query @ key^T) (ATT-1).

    Arrays of any library of the Array API, all of one; operands share one dtype of float64, float32, float16
    and bfloat16, the 16-bit ones computed in float32 and rounded once (DTYPE-1, DTYPE-2, NUM-3).
    `...` stands for any batch axes, `kv_len` counts the past. No input is written to (IND-5).

    Args:
        query: (..., H, q_len, d_k) (SHAPE-1).
        key: (..., G, kv_len, d_k); query head h reads kv head h // (H // G) (HEAD-2).
        value: (..., G, kv_len, d_v) (SHAPE-3).
        mask: bool, True where a query may attend; rank 2 or full, broadcasting to (..., H, q_len, kv_len)
            (MASK-1, SHAPE-7, SHAPE-8).
        attn_bias: floating, added to the logits after softcap; -inf masks; shapes as for mask (ATT-7, ATT-8).
        is_causal: key j is visible to query i only if j <= i + q_offset (MASK-6).
        q_offset: int, or int array () or (...), one per batch entry; needed for is_causal or window where
            q_len != kv_len, else 0 (MASK-7, MASK-8).
        window: (left, right), the furthest visible distances from i + q_offset, None for open
            (MASK-10, MASK-11).
        kv_lengths: int array (...), the slots of each batch entry that exist (MASK-12).
        q_segments: int array (q_len,) or (..., q_len); a query may attend the keys of its own number (MASK-17).
        kv_segments: int array (kv_len,) or (..., kv_len), given with q_segments; the past counts.
        scale: factor of the logits, taken literally; None is 1 / sqrt(d_k) (ATT-3, ATT-4).
        softcap: c > 0, turns each logit x into c * tanh(x / c) before bias and mask (ATT-5, ATT-6).
        sinks: (H,), a logit per head in the softmax denominator only (ATT-12).
        past_key: (..., G, past, d_k), put in front of key (CACHE-1).
        past_value: (..., G, past, d_v), put in front of value (CACHE-1).
        return_weights: whether to return the weights, (..., H, q_len, kv_len) (ATT-13).
        return_lse: whether to return the log of the denominator, (..., H, q_len), float32 for 16-bit operands
            (ATT-14, DTYPE-6).

    Returns:
        The output, (..., H, q_len, d_v), zero for a query that may attend nothing (MASK-3).
        With return_weights, return_lse or a past: an AttentionResult.

    Raises:
        TypeError: something is no array, of another library, or of a wrong dtype (DTYPE-2 to DTYPE-5).
        ValueError: shapes disagree or an option is wrong (SHAPE-5 to SHAPE-11, HEAD-3, MASK-7, CACHE-5).

    >>> import numpy as np
    >>> query, key = np.asarray([[[1.0, 0.0]]]), np.asarray([[[0.0, 1.0], [0.0, 2.0]]])
    >>> value = np.asarray([[[1.0], [3.0]]])
    >>> scaled_dot_product_attention(query, key, value)
    array([[[2.]]])
    >>> scaled_dot_product_attention(query, key, value, mask=np.asarray([[True, False]]))
    array([[[1.]]])
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
    xp, sizes = passed(_checked, (query, key, value), options)
    return at_once(_attended, xp, (query, key, value), options, sizes)


def _attended(xp: Any, operands: Operands, options: Options, sizes: Sizes) -> Any:
    """What a call returns that nothing is wrong with."""
    query, key, value = operands
    all_keys, all_values = with_past(xp, options.past_key, key), with_past(xp, options.past_value, value)
    with quiet(xp):
        result = attend(xp, query, all_keys, all_values, options, sizes)
    return result_of(xp, result, all_keys, all_values, query.dtype, options)


def _checked(query: Array, key: Array, value: Array, options: Options) -> tuple[Any, Sizes]:
    """The namespace and sizes of a call that nothing is wrong with."""
    others = {"past_key": options.past_key, "past_value": options.past_value, "sinks": options.sinks}
    xp = check_operands({"query": query, "key": key, "value": value}, others)
    sizes = head_sizes(query, key, value, options)
    check_options(query, options, sizes)
    return xp, sizes
