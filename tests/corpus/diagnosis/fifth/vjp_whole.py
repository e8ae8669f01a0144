"""Forward that saves its weights, and the backward pass over whole arrays."""

import numpy as np


def _forward(query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale, softcap, sinks):
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    rep = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, rep, axis=-3), np.repeat(v, rep, axis=-3)
    n, s = q.shape[-2], k.shape[-2]
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    x = scale * (q @ k.swapaxes(-1, -2))
    t = None
    if softcap is not None:
        t = np.tanh(x / softcap)
        x = softcap * t
    ok = np.ones(x.shape, dtype=bool)
    if attn_bias is not None:
        x = x + attn_bias
        ok &= attn_bias != -np.inf
    if mask is not None:
        ok &= mask
    i, j = np.arange(n)[:, None], np.arange(s)
    if q_offset is not None:
        i = i + np.asarray(q_offset)[..., None, None, None]
    if is_causal:
        ok &= j <= i
    if window is not None:
        if window[0] is not None:
            ok &= i - j <= window[0]
        if window[1] is not None:
            ok &= j - i <= window[1]
    if kv_lengths is not None:
        exist = j < kv_lengths[..., None, None, None]
        ok &= exist
        k, v = (np.where(exist.swapaxes(-1, -2), a, 0) for a in (k, v))
    x = np.where(ok, x, -np.inf)
    some = ok.any(-1, keepdims=True)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    top = np.where(some, top, 0)
    e = np.where(ok, np.exp(x - top), 0)
    den = e.sum(-1, keepdims=True)
    p_sink = None
    if sinks is not None:
        extra = np.exp(sinks[:, None, None].astype(np.float64) - top)
        den = den + extra
        p_sink = np.where(some, extra / den, 0)
    p = np.where(some, e / np.where(some, den, 1), 0)
    return p @ v, (q, k, v, p, p_sink, t, scale, rep)


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None, sinks=None):
    with np.errstate(all="ignore"):
        out, _ = _forward(query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale,
                          softcap, sinks)
        return out.astype(query.dtype)


def _reduce_to(x, shape):
    """Undo broadcasting."""
    while x.ndim > len(shape):
        x = x.sum(axis=0)
    axes = tuple(n for n, size in enumerate(shape) if size == 1)
    return x.sum(axis=axes, keepdims=True)


def _sum_groups(x, rep):
    *lead, heads, s, d = x.shape
    return x.reshape(*lead, heads // rep, rep, s, d).sum(axis=-3)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False,
                                     q_offset=None, window=None, kv_lengths=None, scale=None, softcap=None,
                                     sinks=None):
    with np.errstate(all="ignore"):
        _, (q, k, v, p, p_sink, t, scale, rep) = _forward(
            query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale, softcap, sinks)
        g = grad_output.astype(np.float64)
        grads = {}
        d_v = p.swapaxes(-1, -2) @ g
        d_p = g @ v.swapaxes(-1, -2)
        delta = (p * d_p).sum(-1, keepdims=True)
        d_s = p * (d_p - delta)
        if attn_bias is not None:
            grads["attn_bias"] = _reduce_to(d_s, attn_bias.shape).astype(attn_bias.dtype)
        if sinks is not None:
            d_sink = -(p_sink * delta)[..., 0].sum(-1)
            grads["sinks"] = d_sink.reshape(-1, len(sinks)).sum(0).astype(sinks.dtype)
        if softcap is not None:
            d_s = d_s * (1 - t * t)
        d_q = scale * (d_s @ k)
        d_k = scale * (d_s.swapaxes(-1, -2) @ q)
        grads["query"] = d_q.astype(query.dtype)
        grads["key"] = _sum_groups(d_k, rep).astype(key.dtype)
        grads["value"] = _sum_groups(d_v, rep).astype(value.dtype)
    return grads
