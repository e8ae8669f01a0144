"""Attention in plain loops over batch and heads, correct as it stands; `slips` says how people get it wrong."""

import math

import numpy as np

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
    "strict_masking",
}


def entry(numbers, b):
    numbers = np.asarray(numbers).reshape(-1)
    return int(numbers[b if len(numbers) > 1 else 0])


def visible(b, q_len, kv_len, is_causal, q_offset, window, kv_lengths):
    offset = 0 if q_offset is None else entry(q_offset, b)
    see = np.ones((q_len, kv_len), bool)
    for i in range(q_len):
        for j in range(kv_len):
            position = i + offset
            if is_causal and j > position:
                see[i, j] = False
            if window is not None and window[0] is not None and j < position - window[0]:
                see[i, j] = False
            if window is not None and window[1] is not None and j > position + window[1]:
                see[i, j] = False
            if kv_lengths is not None and j >= entry(kv_lengths, b):
                see[i, j] = False
    return see


def one_head(q, k, v, see, bias, scale, softcap, sink):
    # q [L, d_k], k [S, d_k], v [S, d_v]
    logits = (q @ k.T) * scale
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
        see = see & (bias != -np.inf)
    logits = np.where(see, logits, -np.inf)
    weights = np.zeros_like(logits)
    lse = np.full(len(q), -np.inf, logits.dtype)
    out = np.zeros((len(q), v.shape[1]), logits.dtype)
    for i in range(len(q)):
        if not see[i].any():
            continue
        row = logits[i]
        top = row.max() if sink is None else max(row.max(), sink)
        e = np.exp(row - top)
        e[~see[i]] = 0
        total = e.sum()
        if sink is not None:
            total = total + np.exp(sink - top)
        weights[i] = e / total
        lse[i] = top + np.log(total)
        out[i] = weights[i][see[i]] @ v[see[i]]
    return out, weights, lse


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
    wide = np.float64 if dtype == np.float64 else np.float32
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
    present = (key, value)
    lead = query.shape[:-3]
    n, heads, q_len, d_k = math.prod(lead), *query.shape[-3:]
    groups, kv_len, d_v = key.shape[-3], key.shape[-2], value.shape[-1]
    q = query.reshape(n, heads, q_len, d_k).astype(wide)
    k = key.reshape(n, groups, kv_len, d_k).astype(wide)
    v = value.reshape(n, groups, kv_len, d_v).astype(wide)
    full = (*lead, heads, q_len, kv_len)
    if mask is not None:
        mask = np.broadcast_to(mask, full).reshape(n, heads, q_len, kv_len)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, full).reshape(n, heads, q_len, kv_len).astype(wide)
    if scale is None:
        scale = 1 / math.sqrt(d_k)
    scale = wide(scale)
    repeat = heads // groups
    out = np.zeros((n, heads, q_len, d_v), wide)
    weights = np.zeros((n, heads, q_len, kv_len), wide)
    lse = np.full((n, heads, q_len), -np.inf, wide)
    for b in range(n):
        see = visible(b, q_len, kv_len, is_causal, q_offset, window, kv_lengths)
        for h in range(heads):
            g = h // repeat
            here = see if mask is None else see & mask[b, h]
            bias = None if attn_bias is None else attn_bias[b, h]
            sink = None if sinks is None else wide(sinks[h])
            out[b, h], weights[b, h], lse[b, h] = one_head(
                q[b, h], k[b, g], v[b, g], here, bias, scale, softcap, sink
            )
    result = {"output": out.reshape(*lead, heads, q_len, d_v).astype(dtype)}
    if return_weights:
        result["weights"] = weights.reshape(full).astype(dtype)
    if return_lse:
        result["lse"] = lse.reshape(*lead, heads, q_len)
    if past_key is not None:
        result["present_key"], result["present_value"] = present
    return result


def project(x, w, b):
    # x [..., L, d_in], w [H, d_in, d], b [H, d] -> [..., H, L, d]
    wide = np.float64 if x.dtype == np.float64 else np.float32
    heads = [x.astype(wide) @ w[h].astype(wide) for h in range(len(w))]
    if b is not None:
        heads = [y + b[h].astype(wide) for h, y in enumerate(heads)]
    return np.stack(heads, axis=-3)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, **options
):
    dtype = query.dtype
    q = project(query, w_q, b_q).astype(dtype)
    k = project(key, w_k, b_k).astype(dtype)
    v = project(value, w_v, b_v).astype(dtype)
    result = scaled_dot_product_attention(q, k, v, **options)
    z = result["output"]
    wide = np.float64 if dtype == np.float64 else np.float32
    output = 0
    for h in range(z.shape[-3]):
        output = output + z[..., h, :, :].astype(wide) @ w_o[h].astype(wide)
    if b_o is not None:
        output = output + b_o.astype(wide)
    result["output"] = output.astype(dtype)
    return result
