"""Forward that saves its weights, and the backward pass of whole arrays that uses them."""
import numpy as np


def _unbroadcast(grad, shape):
    """The sum over the axes that were broadcast."""
    extra = grad.ndim - len(shape)
    grad = grad.sum(axis=tuple(range(extra)))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and grad.shape[i] != 1)
    return grad.sum(axis=axes, keepdims=True)


def _sum_groups(grad, num_kv_heads):
    """(..., H, n, d) -> (..., G, n, d)"""
    *batch, h, n, d = grad.shape
    return grad.reshape(*batch, num_kv_heads, h // num_kv_heads, n, d).sum(axis=-3)


def _visible(shape, mask, attn_bias, is_causal, q_offset, window, kv_lengths):
    *batch, _, n, m = shape
    ok = np.ones(shape, bool)
    i, j = np.arange(n)[:, None], np.arange(m)
    if q_offset is not None:
        i = i + np.asarray(q_offset)[..., None, None, None]
    if mask is not None:
        ok &= mask
    if attn_bias is not None:
        ok &= ~np.isneginf(attn_bias)
    if is_causal:
        ok &= j <= i
    if window is not None:
        left, right = window
        ok &= True if left is None else i - j <= left
        ok &= True if right is None else j - i <= right
    if kv_lengths is not None:
        ok &= j < np.asarray(kv_lengths)[..., None, None, None]
    return ok


def _forward(query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale, softcap, sinks):
    """What the backward pass needs: operands as float64, repeated heads, weights, tanh, sink weights."""
    group = query.shape[-3] // key.shape[-3]
    q = query.astype(np.float64)
    k = np.repeat(key.astype(np.float64), group, axis=-3)
    v = np.repeat(value.astype(np.float64), group, axis=-3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    x = scale * (q @ k.swapaxes(-1, -2))
    t = None
    if softcap is not None:
        t = np.tanh(x / softcap)
        x = softcap * t
    if attn_bias is not None:
        x = x + attn_bias.astype(np.float64)
    ok = _visible(x.shape, mask, attn_bias, is_causal, q_offset, window, kv_lengths)
    if kv_lengths is not None:
        there = np.arange(k.shape[-2])[:, None] < np.asarray(kv_lengths)[..., None, None, None]
        k, v = np.where(there, k, 0), np.where(there, v, 0)
    x = np.where(ok, x, -np.inf)
    live = ok.any(-1, keepdims=True)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    sink = None if sinks is None else sinks.astype(np.float64)[:, None, None]
    if sinks is not None:
        top = np.maximum(top, sink)
    top = np.where(live, top, 0)
    e = np.exp(x - top)
    total = e.sum(-1, keepdims=True)
    p_sink = None
    if sinks is not None:
        total = total + np.exp(sink - top)
        p_sink = np.where(live, np.exp(sink - top) / total, 0)
    p = np.where(live, e / np.where(live, total, 1), 0)
    return q, k, v, scale, p, t, p_sink


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None, sinks=None):
    q, k, v, scale, p, t, p_sink = _forward(query, key, value, mask, attn_bias, is_causal, q_offset, window,
                                            kv_lengths, scale, softcap, sinks)
    return (p @ v).astype(query.dtype)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False,
                                     q_offset=None, window=None, kv_lengths=None, scale=None, softcap=None,
                                     sinks=None):
    q, k, v, scale, p, t, p_sink = _forward(query, key, value, mask, attn_bias, is_causal, q_offset, window,
                                            kv_lengths, scale, softcap, sinks)
    g = grad_output.astype(np.float64)
    num_kv_heads = key.shape[-3]
    dv = p.swapaxes(-1, -2) @ g
    dp = g @ v.swapaxes(-1, -2)
    delta = (p * dp).sum(-1, keepdims=True)
    dl = p * (dp - delta)
    grads = {}
    if attn_bias is not None:
        grads["attn_bias"] = _unbroadcast(dl, attn_bias.shape).astype(attn_bias.dtype)
    if sinks is not None:
        lost = -p_sink * delta
        grads["sinks"] = _unbroadcast(lost, (sinks.shape[0], 1, 1)).reshape(sinks.shape).astype(sinks.dtype)
    dx = dl if t is None else dl * (1 - t * t)
    dq = scale * (dx @ k)
    dk = scale * (dx.swapaxes(-1, -2) @ q)
    grads["query"] = dq.astype(query.dtype)
    grads["key"] = _sum_groups(dk, num_kv_heads).astype(key.dtype)
    grads["value"] = _sum_groups(dv, num_kv_heads).astype(value.dtype)
    return grads
