"""Attention in whole arrays, correct as it stands; `slips` says how people get it wrong."""

import numpy as np

MINUS = -np.inf
dtypes = ("float64", "float32", "float16", "bfloat16")
features = {
    "mask",
    "attn_bias",
    "is_causal",
    "q_offset",
    "window",
    "kv_lengths",
    "scale",
    "softcap",
    "sinks",
    "return_weights",
    "return_lse",
    "cache",
    "gqa",
    "value_dim",
    "broadcast",
    "empty",
}


def wider(dtype):
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def softmax(x, see, sinks):
    # x, see [B, H, L, S] -> weights and lse
    x = np.where(see, x, MINUS)
    top = np.max(x, axis=-1, keepdims=True, initial=MINUS)
    if sinks is not None:
        top = np.maximum(top, sinks)
    finite = np.where(top == MINUS, 0, top)
    e = np.where(see, np.exp(x - finite), 0)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - finite)
    empty = ~see.any(axis=-1, keepdims=True)
    weights = np.where(empty, 0, e / np.where(empty, 1, total))
    lse = np.where(empty, MINUS, np.log(np.where(empty, 1, total)) + finite)
    return weights, lse[..., 0]


def visibility(batch, q_len, kv_len, is_causal, q_offset, window, kv_lengths):
    rows = np.arange(q_len)[None, None, :, None]
    columns = np.arange(kv_len)[None, None, None, :]
    offset = np.zeros(batch, int) if q_offset is None else np.broadcast_to(np.ravel(q_offset), (batch,))
    rows = rows + offset[:, None, None, None]
    see = np.ones((batch, 1, q_len, kv_len), bool)
    if is_causal:
        see = see & (columns <= rows)
    if window is not None:
        left, right = window
        if left is not None:
            see = see & (columns >= rows - left)
        if right is not None:
            see = see & (columns <= rows + right)
    if kv_lengths is not None:
        see = see & (columns < np.reshape(kv_lengths, (batch, 1, 1, 1)))
    return see


def attend(q, k, v, see, bias, scale, softcap, sinks):
    # q [B, H, L, D], k [B, H, S, D], v [B, H, S, E]
    logits = np.einsum("bhld,bhsd->bhls", q, k) * scale
    if softcap is not None:
        logits = np.tanh(logits / softcap) * softcap
    if bias is not None:
        logits = logits + bias
        see = see & ~np.isneginf(bias)
    weights, lse = softmax(logits, see, sinks)
    v = np.where(see.any(axis=2)[..., None], v, 0)
    return np.einsum("bhls,bhse->bhle", weights, v), weights, lse


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    window=None,
    kv_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    past_key=None,
    past_value=None,
    return_weights=False,
    return_lse=False,
):
    dtype = query.dtype
    compute = wider(dtype)
    if past_key is not None:
        key = np.concatenate((past_key, key), axis=-2)
        value = np.concatenate((past_value, value), axis=-2)
    full_key, full_value = key, value
    lead = query.shape[:-3]
    batch = int(np.prod(lead, dtype=int))
    heads, q_len, d_k = query.shape[-3:]
    groups, kv_len, d_v = key.shape[-3], key.shape[-2], value.shape[-1]
    q = query.reshape(batch, heads, q_len, d_k).astype(compute)
    k = key.reshape(batch, groups, kv_len, d_k).astype(compute)
    v = value.reshape(batch, groups, kv_len, d_v).astype(compute)
    k = np.repeat(k, heads // groups, axis=1)
    v = np.repeat(v, heads // groups, axis=1)
    see = visibility(batch, q_len, kv_len, is_causal, q_offset, window, kv_lengths)
    see = np.broadcast_to(see, (batch, heads, q_len, kv_len))
    shape = (*lead, heads, q_len, kv_len)
    if mask is not None:
        see = see & np.broadcast_to(mask, shape).reshape(see.shape)
    bias = None
    if attn_bias is not None:
        bias = np.broadcast_to(attn_bias, shape).reshape(see.shape).astype(compute)
    scale = compute.type(d_k) ** -0.5 if scale is None else compute.type(scale)
    column = None if sinks is None else np.asarray(sinks).astype(compute)[None, :, None, None]
    output, weights, lse = attend(q, k, v, see, bias, scale, softcap, column)
    result = {"output": output.reshape(*lead, heads, q_len, d_v).astype(dtype)}
    if return_weights:
        result["weights"] = weights.reshape(shape).astype(dtype)
    if return_lse:
        result["lse"] = lse.reshape(*lead, heads, q_len)
    if past_key is not None:
        result["present_key"], result["present_value"] = full_key, full_value
    return result


def split_heads(x, w, b):
    # x [..., L, d_in] through one wide matrix [d_in, H * d] -> [..., H, L, d]
    heads, d_in, width = w.shape
    compute = wider(x.dtype)
    wide = np.swapaxes(w, 0, 1).reshape(d_in, heads * width).astype(compute)
    y = x.astype(compute) @ wide
    if b is not None:
        y = y + b.reshape(heads * width).astype(compute)
    y = y.reshape(*x.shape[:-1], heads, width)
    return np.swapaxes(y, -3, -2).astype(x.dtype)


def merge_heads(z, w, b):
    # z [..., H, L, d_v], w [H, d_v, d_out]
    heads, width, d_out = w.shape
    compute = wider(z.dtype)
    joined = np.swapaxes(z, -3, -2).reshape(*z.shape[:-3], z.shape[-2], heads * width)
    y = joined.astype(compute) @ w.reshape(heads * width, d_out).astype(compute)
    if b is not None:
        y = y + b.astype(compute)
    return y.astype(z.dtype)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, **options
):
    q = split_heads(query, w_q, b_q)
    k = split_heads(key, w_k, b_k)
    v = split_heads(value, w_v, b_v)
    result = scaled_dot_product_attention(q, k, v, **options)
    result["output"] = merge_heads(result["output"], w_o, b_o)
    return result
