"""Gradients of attention, right as it stands; `outsider.toml` says how it goes wrong."""

import numpy as np

dtypes = ("float64", "float32", "float16", "bfloat16")


def reduced(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
    scale=None, softcap=None, sinks=None,
):  # fmt: skip
    dtype = query.dtype
    kind = np.float64 if dtype == np.float64 else np.float32
    q, k, v, g = (x.astype(kind) for x in (query, key, value, grad_output))
    *batch, heads, rows, width = q.shape
    kv_heads, keys = k.shape[-3:-1]
    group = heads // kv_heads
    scale = kind(width**-0.5 if scale is None else scale)
    k = np.repeat(k, group, axis=-3)
    v = np.repeat(v, group, axis=-3)
    seen = np.broadcast_to(True if mask is None else mask, (*batch, heads, rows, keys))
    if attn_bias is not None:
        seen = seen & (attn_bias != -np.inf)
    if is_causal:
        offset = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
        seen = seen & (np.arange(keys) <= np.arange(rows)[:, None] + offset)
    x = scale * (q @ np.swapaxes(k, -1, -2))
    logits = x
    if softcap is not None:
        bent = np.tanh(x / kind(softcap))
        logits = kind(softcap) * bent
    if attn_bias is not None:
        logits = logits + attn_bias.astype(kind)
    logits = np.where(seen, logits, -np.inf)
    empty = ~seen.any(axis=-1, keepdims=True)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks.astype(kind)[:, None, None])
    top = np.where(empty, 0, top)
    p = np.where(seen, np.exp(logits - top), 0)
    total = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        p_sink = np.exp(sinks.astype(kind)[:, None, None] - top)
        total = total + p_sink
        p_sink = np.where(empty, 0, p_sink / np.where(empty, 1, total))
    p = p / np.where(empty, 1, total)
    dp = g @ np.swapaxes(v, -1, -2)
    delta = (p * np.where(seen, dp, 0)).sum(axis=-1, keepdims=True)
    dl = np.where(seen, p * (dp - delta), 0)
    dx = dl
    if softcap is not None:
        dx = np.where(seen, dl * (1 - bent**2), 0)
    dq = scale * (dx @ k)
    dk = scale * (np.swapaxes(dx, -1, -2) @ q)
    dv = np.swapaxes(p, -1, -2) @ g
    dk = dk.reshape(*batch, kv_heads, group, keys, width).sum(axis=-3)
    dv = dv.reshape(*batch, kv_heads, group, keys, v.shape[-1]).sum(axis=-3)
    grads = {"query": dq.astype(dtype), "key": dk.astype(dtype), "value": dv.astype(dtype)}
    if attn_bias is not None:
        grads["attn_bias"] = reduced(dl, attn_bias.shape).astype(attn_bias.dtype)
    if sinks is not None:
        d = -(p_sink * delta)[..., 0]
        grads["sinks"] = np.moveaxis(d, -2, 0).reshape(heads, -1).sum(axis=-1).astype(dtype)
    return grads
