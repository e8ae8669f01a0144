"""Backward with the full weight matrix, the formulas written out."""

import numpy as np


def _fold(x, shape):
    extra = x.ndim - len(shape)
    x = x.sum(axis=tuple(range(extra)))
    axes = tuple(a for a, n in enumerate(shape) if n == 1 and x.shape[a] != 1)
    return x.sum(axis=axes, keepdims=True)


def _group(x, groups):
    x = x.reshape(*x.shape[:-3], groups, x.shape[-3] // groups, *x.shape[-2:])
    return x.sum(axis=-3)


def scaled_dot_product_attention_vjp(
    query,
    key,
    value,
    grad_output,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    sinks=None,
    past_key=None,
    past_value=None,
):
    dtype = query.dtype
    new = key.shape[-2]
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
    q, k, v, g = (a.astype(np.float64) for a in (query, key, value, grad_output))
    H, T, D = q.shape[-3:]
    G, S = k.shape[-3:-1]
    k, v = np.repeat(k, H // G, axis=-3), np.repeat(v, H // G, axis=-3)
    c = D**-0.5 if scale is None else float(scale)
    x = q @ k.swapaxes(-1, -2) * c
    if softcap is not None:
        t = np.tanh(x / softcap)
        y = softcap * t
    else:
        y = x
    ok = np.ones(x.shape, bool)
    if attn_bias is not None:
        y = y + attn_bias
        ok &= attn_bias != -np.inf
    if mask is not None:
        ok &= mask
    if is_causal:
        off = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
        ok &= np.arange(S) <= np.arange(T)[:, None] + off
    y = np.where(ok, y, -np.inf)
    empty = ~ok.any(-1, keepdims=True)
    top = y.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    top = np.where(empty, 0, top)
    p = np.where(ok, np.exp(y - top), 0)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        e_sink = np.exp(sinks[:, None, None] - top)
        total = total + e_sink
    total = np.where(empty, 1, total)
    p = p / total

    d_v = p.swapaxes(-1, -2) @ g
    d_p = g @ v.swapaxes(-1, -2)
    delta = np.sum(np.where(ok, p * d_p, 0), axis=-1, keepdims=True)
    d_y = np.where(ok, p * (d_p - delta), 0)
    d_x = d_y
    if softcap is not None:
        d_x = d_x * (1 - t**2)
    d_x = np.where(ok, d_x, 0)
    d_q = d_x @ k * c
    d_k = d_x.swapaxes(-1, -2) @ q * c
    d_k, d_v = _group(d_k, G), _group(d_v, G)
    grads = {
        "query": d_q.astype(dtype),
        "key": d_k[..., S - new :, :].astype(dtype),
        "value": d_v[..., S - new :, :].astype(dtype),
    }
    if attn_bias is not None:
        grads["attn_bias"] = _fold(d_y, attn_bias.shape).astype(attn_bias.dtype)
    if sinks is not None:
        p_sink = np.where(empty, 0, e_sink / total)
        d_s = -(p_sink * delta)[..., 0].sum(axis=-1)
        grads["sinks"] = d_s.reshape(-1, H).sum(axis=0).astype(dtype)
    return grads
