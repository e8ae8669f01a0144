"""Serving-like backward: one request at a time over its live keys, reused scratch, a one-query (decode) path."""
import numpy as np


def _mm(p, x, vis):
    """p @ x over the last two axes in which a hidden pair adds nothing, whatever x holds there."""
    if np.isfinite(x).all():
        return p @ x
    return np.where(vis[..., None], p[..., None] * x[..., None, :, :], 0).sum(-2)


def _t(a):
    return np.swapaxes(a, -1, -2)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None,
                                     is_causal=False, q_offset=None, window=None, kv_lengths=None,
                                     scale=None, softcap=None, sinks=None, past_key=None, past_value=None):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    P = 0 if past_key is None else past_key.shape[-2]
    if past_key is not None:
        key, value = np.concatenate([past_key, key], -2), np.concatenate([past_value, value], -2)
    (G, N), E = key.shape[-3:-1], value.shape[-1]
    B, rep, f4, dtype = int(np.prod(batch)), H // G, np.float32, query.dtype
    q, k = query.reshape(B, G, rep, M, D).astype(f4), key.reshape(B, G, 1, N, D).astype(f4)
    v, do = value.reshape(B, G, 1, N, E).astype(f4), grad_output.reshape(B, G, rep, M, E).astype(f4)
    scale = f4(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    grid = lambda a: np.broadcast_to(a, batch + (H, M, N)).reshape(B, G, rep, M, N)
    allow = None if mask is None else grid(mask)
    bias = None if attn_bias is None else grid(attn_bias)
    offs = np.broadcast_to(N - M if q_offset is None else q_offset, (B,))
    lens = np.minimum(np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,)), N)
    dq, dk, dv = np.zeros(q.shape, f4), np.zeros((B, G, N, D), f4), np.zeros((B, G, N, E), f4)
    db = None if bias is None else np.zeros(bias.shape, f4)
    dsink = np.zeros((G, rep), f4)
    p_buf, d_buf = np.zeros((2, G, rep, M, N), f4)  # weights and score gradients of one request
    seen = np.zeros((G, rep, M, N), bool)
    for b in range(B):
        n = int(lens[b])
        kb, vb = k[b, :, :, :n], v[b, :, :, :n]
        x = (q[b] @ _t(kb)) * scale
        slope = scale
        if softcap is not None:
            t = np.tanh(x / f4(softcap))
            x, slope = f4(softcap) * t, scale * (1 - t * t)
        if bias is not None:
            x = x + bias[b, ..., :n].astype(f4)
        vis = np.ones(x.shape, bool) if allow is None else allow[b, ..., :n]
        row, col = np.arange(M)[:, None] + offs[b], np.arange(n)
        if is_causal:
            vis = vis & (col <= row)
        if window is not None and window[0] is not None:
            vis = vis & (col >= row - window[0])
        if window is not None and window[1] is not None:
            vis = vis & (col <= row + window[1])
        x = np.where(vis, x, -np.inf)
        top = x.max(-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            sink = sinks.reshape(G, rep, 1, 1).astype(f4)
            top = np.maximum(top, sink)
        top = np.where(top == -np.inf, 0, top)
        e = np.where(vis, np.exp(x - top), 0)
        total = e.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sink - top))
        total = np.where(total == 0, 1, total)
        p, ds = p_buf[..., :n], d_buf[..., :n]
        p[...] = np.where(vis, e / total, 0)
        dp = do[b] @ _t(vb)
        delta = np.where(vis, p * dp, 0).sum(-1, keepdims=True)
        ds[...] = np.where(vis, p * (dp - delta), 0)
        seen[..., :n] = vis
        if db is not None:
            db[b, ..., :n] = ds
        if sinks is not None:
            dsink -= (np.exp(sink - top) / total * delta).sum((-1, -2))
        ds[...] = np.where(vis, ds * slope, 0)
        dq[b] = _mm(ds, kb, vis)
        if M == 1:  # decode: the group's heads are the rows of one product
            heads = lambda a: a.reshape((G, rep) + a.shape[3:])
            dv[b, :, :n] = _mm(_t(heads(p)), heads(do[b]), _t(heads(vis)))
            dk[b, :, :n] = _mm(_t(heads(ds)), heads(q[b]), _t(heads(vis)))
        else:
            dv[b] = _mm(_t(p_buf), do[b], _t(seen)).sum(1)
            dk[b] = _mm(_t(d_buf), q[b], _t(seen)).sum(1)
    dk, dv = dk.reshape(key.shape).astype(dtype), dv.reshape(value.shape).astype(dtype)
    out = {"query": dq.reshape(query.shape).astype(dtype), "key": dk[..., P:, :], "value": dv[..., P:, :]}
    if past_key is not None:
        out["past_key"], out["past_value"] = dk[..., :P, :], dv[..., :P, :]
    if db is not None:
        db, shape = db.reshape(batch + (H, M, N)), attn_bias.shape
        db = db.sum(tuple(range(db.ndim - len(shape))))
        one = tuple(a for a, size in enumerate(shape) if size == 1 and db.shape[a] != 1)
        out["attn_bias"] = db.sum(one, keepdims=True).astype(dtype)
    if sinks is not None:
        out["sinks"] = dsink.reshape(H).astype(dtype)
    return out
