"""A library with conventions of its own (below), and the suite's calls mapped onto it."""

import math

import numpy as np

# ---- the library: length before heads, True in a mask hides, causal is aligned to the last key, -1 is no window,
# ---- softcap 0 is none, Linear weights are (out, in)


def fused_attention(q, k, v, hidden=None, additive=None, causal=False, shift=0, window_size=(-1, -1),
                    softmax_scale=1.0, softcap=0.0):
    """q (N, L, H, E), k and v (N, S, H, E); hidden and additive (N, H, L, S) -> (N, L, H, E), (N, H, L, S)"""
    l, s = q.shape[1], k.shape[1]
    scores = np.einsum("nlhe,nshe->nhls", q, k) * softmax_scale
    if softcap > 0:
        scores = np.tanh(scores / softcap) * softcap
    if additive is not None:
        scores = scores + additive
    i = np.arange(l)[:, None] + (s - l) + np.reshape(shift, (-1, 1, 1, 1))
    j = np.arange(s)
    gone = np.zeros(scores.shape, dtype=bool)
    if hidden is not None:
        gone |= hidden
    if causal:
        gone |= j > i
    if window_size[0] >= 0:
        gone |= j < i - window_size[0]
    if window_size[1] >= 0:
        gone |= j > i + window_size[1]
    p = np.exp(np.where(gone, -np.inf, scores - _peak(scores, gone)))
    p = np.where(gone, 0, p)
    dead = gone.all(axis=-1, keepdims=True)
    p = p / np.where(dead, 1, p.sum(axis=-1, keepdims=True))
    return np.einsum("nhls,nshe->nlhe", p, v), p


def _peak(scores, gone):
    top = np.max(np.where(gone, -np.inf, scores), axis=-1, keepdims=True, initial=-np.inf)
    return np.where(gone.all(axis=-1, keepdims=True), 0, top)


class Linear:
    def __init__(self, weight, bias=None):
        self.weight, self.bias = weight, bias

    def __call__(self, x):
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


# ---- the adapter


def _flat(x, tail):
    return x.reshape(math.prod(x.shape[:-tail]), *x.shape[-tail:])


def _options(lead, heads, q_len, kv_len, mask, attn_bias, is_causal, q_offset, window):
    full, flat = (*lead, heads, q_len, kv_len), (math.prod(lead), heads, q_len, kv_len)
    found = {"causal": is_causal}
    if mask is not None:
        found["hidden"] = np.broadcast_to(~mask, full).reshape(flat)
    if attn_bias is not None:
        b = np.broadcast_to(attn_bias, full).reshape(flat).astype(np.float64)
        off = np.isneginf(b)
        found["additive"] = np.where(off, 0, b)
        found["hidden"] = off | found.get("hidden", False)
    if q_offset is not None:
        found["shift"] = np.broadcast_to(q_offset, lead).reshape(flat[0]) - (kv_len - q_len)
    if window is not None:
        found["window_size"] = tuple(-1 if side is None else side for side in window)
    return found


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, scale=None, softcap=None, return_weights=False):
    lead, (heads, q_len, width) = query.shape[:-3], query.shape[-3:]
    rep = heads // key.shape[-3]
    q, k, v = (np.moveaxis(_flat(x, 3).astype(np.float64), 1, 2) for x in (query, key, value))
    k, v = np.repeat(k, rep, axis=2), np.repeat(v, rep, axis=2)
    options = _options(lead, heads, q_len, k.shape[1], mask, attn_bias, is_causal, q_offset, window)
    with np.errstate(all="ignore"):
        out, p = fused_attention(q, k, v, softmax_scale=width ** -0.5 if scale is None else scale,
                                 softcap=softcap or 0.0, **options)
        result = {"output": np.moveaxis(out, 2, 1).reshape(*lead, heads, q_len, v.shape[-1]).astype(query.dtype)}
        if return_weights:
            result["weights"] = p.reshape(*lead, heads, q_len, k.shape[1]).astype(query.dtype)
    return result


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
                         attn_bias=None, is_causal=False, q_offset=None, window=None, scale=None, softcap=None,
                         return_weights=False):
    lead, q_len, kv_len = query.shape[:-2], query.shape[-2], key.shape[-2]
    (heads, _, d_k), kv_heads = w_q.shape, w_k.shape[0]

    def linear(w, b):
        weight = np.swapaxes(w.astype(np.float64), 1, 2).reshape(-1, w.shape[1])
        return Linear(weight, None if b is None else b.astype(np.float64).reshape(-1))

    q_proj, k_proj, v_proj = linear(w_q, b_q), linear(w_k, b_k), linear(w_v, b_v)
    o_proj = Linear(w_o.astype(np.float64).reshape(-1, w_o.shape[-1]).T, b_o)
    x, c, d = (_flat(a, 2).astype(np.float64) for a in (query, key, value))
    with np.errstate(all="ignore"):
        q = q_proj(x).reshape(len(x), q_len, heads, d_k)
        k = k_proj(c).reshape(len(x), kv_len, kv_heads, d_k)
        v = v_proj(d).reshape(len(x), kv_len, kv_heads, w_v.shape[-1])
        k, v = (np.repeat(a, heads // kv_heads, axis=2) for a in (k, v))
        options = _options(lead, heads, q_len, kv_len, mask, attn_bias, is_causal, q_offset, window)
        out, p = fused_attention(q, k, v, softmax_scale=d_k ** -0.5 if scale is None else scale,
                                 softcap=softcap or 0.0, **options)
        y = o_proj(out.reshape(len(x), q_len, heads * w_v.shape[-1]))
        result = {"output": y.reshape(*lead, q_len, w_o.shape[-1]).astype(query.dtype)}
        if return_weights:
            result["weights"] = p.reshape(*lead, heads, q_len, kv_len).astype(query.dtype)
    return result
