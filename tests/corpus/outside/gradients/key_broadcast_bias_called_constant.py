"""Memory-efficient backward: chunks of query rows for all heads at once; wide heads in slices of 64 features."""
import numpy as np

CHUNK, SLICE = 128, 64


def _mm(p, x, vis):
    """p @ x over the last two axes in which a hidden pair adds nothing, whatever x holds there."""
    if np.isfinite(x).all():
        return p @ x
    return np.where(vis[..., None], p[..., None] * x[..., None, :, :], 0).sum(-2)


def _t(a):
    return np.swapaxes(a, -1, -2)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None,
                                     is_causal=False, q_offset=None, window=None, kv_lengths=None,
                                     scale=None, softcap=None, sinks=None):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    (G, N), E = key.shape[-3:-1], value.shape[-1]
    B, rep, dtype = int(np.prod(batch)), H // G, query.dtype
    acc = np.dtype(np.float64 if dtype == np.float64 else np.float32).type
    q, k = query.reshape(B, G, rep, M, D), key.reshape(B, G, 1, N, D)
    v, do = value.reshape(B, G, 1, N, E), grad_output.reshape(B, G, rep, M, E)
    if scale is None:
        scale = 1 / np.sqrt(max(D, 1))
    wide = D > 2 * SLICE
    feats = [slice(f, f + SLICE) for f in range(0, D, SLICE)] if wide else [slice(0, D)]
    five = lambda a, i: np.broadcast_to(a, batch + (H,) + a.shape[-2:])[..., i if a.shape[-2] > 1 else slice(None), :]
    offs = np.broadcast_to(N - M if q_offset is None else q_offset, (B,)).reshape(B, 1, 1, 1, 1)
    lens = np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,)).reshape(B, 1, 1, 1, 1)
    col = np.arange(N)
    dq, dk, dv = np.zeros(q.shape, acc), np.zeros((B, G, N, D), acc), np.zeros((B, G, N, E), acc)
    if attn_bias is not None:  # always rank 4 inside: a rank-2 bias gets leading ones
        shape = (1,) * (len(batch) + 3 - attn_bias.ndim) + attn_bias.shape
        dbias = np.zeros(shape, acc)
        summed = tuple(a for a, s in enumerate(shape) if s == 1 and a != len(shape) - 2)
    dsink = np.zeros(H, acc)
    for i0 in range(0, M, CHUNK):
        i = slice(i0, min(i0 + CHUNK, M))
        rows = i.stop - i.start
        qi, doi = q[..., i, :], do[..., i, :]
        x = np.zeros((B, G, rep, rows, N), acc)
        for f in feats:
            x += qi[..., f] @ _t(k[..., f])
        x *= acc(scale)
        slope = acc(1)
        if softcap is not None:
            t = np.tanh(x / acc(softcap))
            x, slope = acc(softcap) * t, 1 - t * t
        if attn_bias is not None:
            part = five(attn_bias, i)
            x = x + part.reshape((B, G, rep) + part.shape[-2:])
        vis = np.broadcast_to(col < lens, x.shape)
        row = np.arange(i.start, i.stop)[:, None] + offs
        if is_causal:
            vis = vis & (col <= row)
        if window is not None:
            vis = vis if window[0] is None else vis & (col >= row - window[0])
            vis = vis if window[1] is None else vis & (col <= row + window[1])
        if mask is not None:
            part = five(mask, i)
            vis = vis & part.reshape((B, G, rep) + part.shape[-2:])
        x = np.where(vis, x, -np.inf)
        top = x.max(-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            sink = sinks.reshape(G, rep, 1, 1)
            top = np.maximum(top, sink)
        top = np.where(top == -np.inf, 0, top)
        e = np.where(vis, np.exp(x - top), 0)
        total = e.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        total = np.where(total == 0, 1, total)
        p = np.where(vis, e / total, 0)
        dp = doi @ _t(v)
        delta = np.where(vis, p * dp, 0).sum(-1, keepdims=True)
        ds = np.where(vis, p * (dp - delta), 0)
        if sinks is not None:
            dsink -= (np.exp(sink - top) / total * delta).sum((0, -1, -2)).reshape(H)
        if attn_bias is not None and shape[-1] != 1:  # a shift of a whole row cancels in the softmax
            g = ds.reshape(batch + (H, rows, N)).sum(summed, keepdims=True)
            if shape[-2] == 1:
                dbias += g.sum(-2, keepdims=True)
            else:
                dbias[..., i, :] = g
        dx = np.where(vis, ds * slope, 0) * acc(scale)
        dv += _mm(_t(p), doi, _t(vis)).sum(2)
        for f in feats:
            dq[..., i, f] = _mm(dx, k[..., f], vis)
            dk[..., f] += _mm(_t(dx), qi[..., f], _t(vis)).sum(2)
    out = {"query": dq.reshape(query.shape), "key": dk.reshape(key.shape), "value": dv.reshape(value.shape)}
    if attn_bias is not None:
        out["attn_bias"] = dbias.reshape(attn_bias.shape)
    if sinks is not None:
        out["sinks"] = dsink
    return {name: grad.astype(dtype) for name, grad in out.items()}


scaled_dot_product_attention_vjp.dtypes = ("float32", "float64")
