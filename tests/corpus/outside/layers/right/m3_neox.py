"""Megatron/GPT-NeoX query_key_value layer on NumPy: per group the fused weight holds the rep query
heads, then the key head, then the value head, in slots of one width; split after the product.
Cross attention uses the query part and the key-value part of the same fused weight."""
import numpy as np


def _fuse(w_q, w_k, w_v, slot):
    """(H, D, d), (G, D, d), (G, D, dv) -> (G, rep + 2, D, slot)"""
    g = w_k.shape[0]
    rep = w_q.shape[0] // max(g, 1)
    fused = np.zeros((g, rep + 2, w_q.shape[1], slot), np.float32)
    fused[:, :rep, :, :w_q.shape[2]] = w_q.reshape(g, rep, w_q.shape[1], w_q.shape[2])
    fused[:, rep, :, :w_k.shape[2]] = w_k
    fused[:, rep + 1, :, :w_v.shape[2]] = w_v
    return fused


def _project(x, w, b):
    """x (N, L, D), w (G, C, D, slot), b (G, C, slot) -> (N, G, C, L, slot)"""
    g, c, d, slot = w.shape
    y = x.reshape(-1 if x.size else x.shape[0] * x.shape[1], d) @ w.transpose(2, 0, 1, 3).reshape(d, g * c * slot)
    y = y + b.reshape(-1)
    return y.reshape(x.shape[:2] + (g, c, slot)).transpose(0, 2, 3, 1, 4)


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                         b_o=None, is_causal=False, q_offset=None, window=None, scale=None,
                         softcap=None, sinks=None, return_lse=False):
    dtype, lead = query.dtype, query.shape[:-2]
    h, d, g, dv = w_q.shape[0], w_q.shape[2], w_k.shape[0], w_v.shape[2]
    rep, slot = h // max(g, 1), max(d, dv)
    t, s, n = query.shape[-2], key.shape[-2], int(np.prod(lead))
    flat = lambda x: x.reshape((n,) + x.shape[-2:]).astype(np.float32)
    scale = np.float32(1.0 / np.sqrt(max(d, 1)) if scale is None else scale)

    bias = np.zeros((g, rep + 2, slot), np.float32)
    if b_q is not None:
        bias[:, :rep, :d] = b_q.reshape(g, rep, d)
    if b_k is not None:
        bias[:, rep, :d] = b_k
    if b_v is not None:
        bias[:, rep + 1, :dv] = b_v
    with np.errstate(all="ignore"):
        if query is key and key is value:
            fused = _fuse(w_q, w_k, w_v, slot)
            qkv = _project(flat(query), fused, bias)
            q, k, v = qkv[:, :, :rep], qkv[:, :, rep], qkv[:, :, rep + 1]
        else:
            pad = lambda w: np.pad(w.astype(np.float32), ((0, 0),) * 2 + ((0, slot - w.shape[-1]),))[:, None]
            q = _project(flat(query), pad(w_q).reshape(g, rep, w_q.shape[1], slot), bias[:, :rep])
            k = _project(flat(key), pad(w_k), bias[:, rep:rep + 1])[:, :, 0]
            v = _project(flat(value), pad(w_v), bias[:, rep + 1:])[:, :, 0]
        q = q[..., :d].reshape(n, g, rep * t, d) * scale
        k, v = k[..., :d], v[..., :dv]
        x = q @ k.swapaxes(-1, -2)
        if softcap is not None:
            x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
        off = np.asarray(0 if q_offset is None else q_offset)
        off = np.broadcast_to(off.reshape(off.shape + (1,) * (len(lead) - off.ndim)), lead).reshape(n, 1, 1, 1)
        pos, col = np.tile(np.arange(t), rep)[:, None] + off, np.arange(s)
        left, right = window or (None, None)
        if is_causal:
            right = 0 if right is None else min(right, 0)
        keep = np.ones(x.shape, bool)
        if left is not None:
            keep &= col >= pos - left
        if right is not None:
            keep &= col <= pos + right
        x = np.where(keep, x, np.float32(-np.inf))
        sink = np.float32(-np.inf)
        if sinks is not None:
            sink = np.repeat(sinks.astype(np.float32).reshape(g, rep), t, axis=1)[..., None]
        top = np.maximum(x.max(-1, keepdims=True, initial=-np.inf), sink)
        top = np.where(top == -np.inf, 0, top)
        p = np.where(keep, np.exp(x - top), 0)
        total = p.sum(-1, keepdims=True) + np.exp(sink - top)
        bad = ~np.isfinite(v).all(-1)
        ctx = p @ np.where(bad[..., None], 0, v)
        for j in np.flatnonzero(bad.any((0, 1))):
            sees = keep[..., j, None] & bad[..., j, None, None]
            ctx = ctx + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
        ctx = ctx / np.where(total == 0, 1, total)
        lse = np.log(total) + top
        ctx = ctx.reshape(n, h, t, dv).transpose(0, 2, 1, 3).reshape(n, t, h * dv)
        out = ctx @ w_o.astype(np.float32).reshape(h * dv, w_o.shape[-1])
        if b_o is not None:
            out = out + b_o.astype(np.float32)
    out = out.reshape(lead + (t, w_o.shape[-1])).astype(dtype)
    return {"output": out, "lse": lse.reshape(lead + (h, t)).astype(dtype)} if return_lse else out


multi_head_attention.dtypes = ("float32", "float16", "bfloat16")
