"""Gradients with saved weights, over whole arrays, of attention and of the layer around it."""
import numpy as np


def sum_to(x, shape):
    """The transpose of a broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    for axis, size in enumerate(shape):
        if size == 1 and x.shape[axis] != 1:
            x = x.sum(axis=axis, keepdims=True)
    return x


def forward(q, k, v, mask, attn_bias, is_causal, q_offset, kv_lengths, scale, softcap, sinks):
    """Output and what the way back needs."""
    batch, heads = q.shape[:-3], q.shape[-3]
    share = heads // k.shape[-3]
    k, v = np.repeat(k, share, axis=-3), np.repeat(v, share, axis=-3)
    x = scale * (q @ k.swapaxes(-1, -2))
    bend = None
    if softcap is not None:
        bend = np.tanh(x / softcap)
        x = softcap * bend
    keep = np.ones(x.shape, bool)
    if attn_bias is not None:
        x = x + attn_bias
        keep &= attn_bias != -np.inf
    if mask is not None:
        keep &= mask
    columns = np.arange(x.shape[-1])
    if is_causal:
        at = np.asarray(0 if q_offset is None else q_offset)
        at = at.reshape(*batch, 1, 1, 1) if at.ndim else at
        keep &= columns <= np.arange(x.shape[-2])[:, None] + at
    if kv_lengths is not None:
        keep &= columns < np.reshape(kv_lengths, (*batch, 1, 1, 1))
    x = np.where(keep, x, -np.inf)
    some = keep.any(axis=-1, keepdims=True)
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks.reshape(-1, 1, 1))
    top = np.where(some, top, 0.0)
    e = np.where(keep, np.exp(x - top), 0.0)
    den = e.sum(axis=-1, keepdims=True)
    p_sink = None
    if sinks is not None:
        es = np.exp(sinks.reshape(-1, 1, 1) - top)
        den = den + es
        p_sink = np.where(some, es / den, 0.0)
    p = np.where(some, e / den, 0.0)
    return p @ v, (q, k, v, p, p_sink, bend, scale, share)


def backward(g, saved):
    q, k, v, p, p_sink, bend, scale, share = saved
    dp = g @ v.swapaxes(-1, -2)
    delta = (p * dp).sum(axis=-1, keepdims=True)
    ds = p * (dp - delta)
    dx = ds if bend is None else ds * (1.0 - bend**2)
    dq = scale * (dx @ k)
    dk = scale * (dx.swapaxes(-1, -2) @ q)
    dv = p.swapaxes(-1, -2) @ g

    def per_group(x):
        return x.reshape(*x.shape[:-3], x.shape[-3] // share, share, *x.shape[-2:]).sum(axis=-3)

    d_sinks = None
    if p_sink is not None:
        d_sinks = -(p_sink * delta).sum(axis=(-1, -2))
        d_sinks = d_sinks.reshape(-1, d_sinks.shape[-1]).sum(axis=0)
    return dq, per_group(dk), per_group(dv), ds, d_sinks


def alive(x, kv_lengths):
    """Zeros in what lies beyond the lengths; the lengths have the batch axes."""
    lengths = np.asarray(kv_lengths)
    lengths = lengths.reshape(lengths.shape + (1,) * (x.ndim - lengths.ndim))
    return np.where(np.arange(x.shape[-2])[:, None] < lengths, x, 0.0)


def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None,
):
    q, k, v, g = (x.astype(np.float64) for x in (query, key, value, grad_output))
    if kv_lengths is not None:
        k, v = alive(k, kv_lengths), alive(v, kv_lengths)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = None if sinks is None else sinks.astype(np.float64)
    with np.errstate(all="ignore"):
        _, saved = forward(q, k, v, mask, attn_bias, is_causal, q_offset, kv_lengths, scale, softcap, s)
        dq, dk, dv, ds, d_sinks = backward(g, saved)
    found = {"query": dq.astype(query.dtype), "key": dk.astype(key.dtype), "value": dv.astype(value.dtype)}
    if attn_bias is not None:
        found["attn_bias"] = sum_to(ds, attn_bias.shape).astype(attn_bias.dtype)
    if sinks is not None:
        found["sinks"] = d_sinks.astype(sinks.dtype)
    return found


def project(x, w, b):
    y = np.einsum("...ld,hde->...hle", x, w)
    return y if b is None else y + b[:, None, :]


def project_vjp(x, w, dy):
    """Gradients of x, w and b."""
    dx = np.einsum("...hle,hde->...ld", dy, w)
    flat = x.reshape(int(np.prod(x.shape[:-2])), *x.shape[-2:])
    dy = dy.reshape(len(flat), *dy.shape[-3:])
    return dx, np.einsum("bld,bhle->hde", flat, dy), dy.sum(axis=(0, 2))


def multi_head_attention_vjp(
    query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None,
    mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None, softcap=None,
    sinks=None,
):
    given = {"query": query, "key": key, "value": value, "w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o,
             "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o, "attn_bias": attn_bias, "sinks": sinks}
    x_q, x_k, x_v, g = (x.astype(np.float64) for x in (query, key, value, grad_output))
    w = {n: given[n].astype(np.float64) for n in ("w_q", "w_k", "w_v", "w_o")}
    if kv_lengths is not None:
        x_k, x_v = alive(x_k, kv_lengths), alive(x_v, kv_lengths)
    scale = w_q.shape[-1] ** -0.5 if scale is None else scale
    s = None if sinks is None else sinks.astype(np.float64)
    with np.errstate(all="ignore"):
        q, k, v = project(x_q, w["w_q"], b_q), project(x_k, w["w_k"], b_k), project(x_v, w["w_v"], b_v)
        z, saved = forward(q, k, v, mask, attn_bias, is_causal, q_offset, kv_lengths, scale, softcap, s)
        dz = np.einsum("...lo,heo->...hle", g, w["w_o"])
        found = {}
        z_flat, g_flat = z.reshape(-1, *z.shape[-3:]), g.reshape(-1, *g.shape[-2:])
        found["w_o"] = np.einsum("bhle,blo->heo", z_flat, g_flat)
        found["b_o"] = g_flat.sum(axis=(0, 1))
        dq, dk, dv, ds, d_sinks = backward(dz, saved)
        found["query"], found["w_q"], found["b_q"] = project_vjp(x_q, w["w_q"], dq)
        found["key"], found["w_k"], found["b_k"] = project_vjp(x_k, w["w_k"], dk)
        found["value"], found["w_v"], found["b_v"] = project_vjp(x_v, w["w_v"], dv)
    if attn_bias is not None:
        found["attn_bias"] = sum_to(ds, attn_bias.shape)
    if sinks is not None:
        found["sinks"] = d_sinks
    return {n: found[n].astype(x.dtype) for n, x in given.items() if x is not None}
