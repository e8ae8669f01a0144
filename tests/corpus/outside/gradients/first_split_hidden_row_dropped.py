"""Split-KV backward: the group's query heads are packed as rows; splits keep dq partials in a ring of slots."""
import numpy as np

SPLIT, SLOTS = 64, 4


def _mm(p, x, vis):
    """p @ x in which a hidden pair adds nothing, whatever x holds there."""
    bad = ~np.isfinite(x).all(-1)
    if not bad.any():
        return p @ x
    out = p @ np.where(bad[:, None], 0, x)
    for j in np.flatnonzero(bad):
        out += np.where(vis[:, j, None], p[:, j, None] * x[j], 0)
    return out


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None,
                                     is_causal=False, q_offset=None, window=None, kv_lengths=None,
                                     scale=None, softcap=None, sinks=None):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    (G, N), E = key.shape[-3:-1], value.shape[-1]
    B, rep, dtype = int(np.prod(batch)), H // G, query.dtype
    R, acc = rep * M, np.dtype(np.float64 if query.dtype == np.float64 else np.float32)
    q, do = query.reshape(B, G, R, D), grad_output.reshape(B, G, R, E)
    k, v = key.reshape(B, G, N, D), value.reshape(B, G, N, E)
    scale = acc.type(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    grid = lambda a: np.broadcast_to(a, batch + (H, M, N)).reshape(B, G, R, N)
    allow = None if mask is None else grid(mask)
    bias = None if attn_bias is None else grid(attn_bias)
    pos = np.tile(np.arange(M), rep)[:, None]
    offs = np.broadcast_to(N - M if q_offset is None else q_offset, (B,))
    lens = np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,))

    def scores(b, g, j, shift):
        x = (q[b, g] @ k[b, g, j].T) * scale
        s = x if softcap is None else softcap * np.tanh(x / acc.type(softcap))
        slope = scale if softcap is None else scale * (1 - (s / acc.type(softcap)) ** 2)
        if bias is not None:
            s = s + bias[b, g, :, j]
        col = np.arange(N)[j]
        vis = np.broadcast_to(col < lens[b], s.shape)
        if is_causal:
            vis = vis & (col <= pos + shift)
        if window is not None and window[0] is not None:
            vis = vis & (col >= pos + shift - window[0])
        if window is not None and window[1] is not None:
            vis = vis & (col <= pos + shift + window[1])
        if allow is not None:
            vis = vis & allow[b, g, :, j]
        return np.where(vis, s, -np.inf), vis, slope

    dq, dk, dv = np.zeros(q.shape, acc), np.zeros(k.shape, acc), np.zeros(v.shape, acc)
    db = None if bias is None else np.zeros((B, G, R, N), acc)
    dsink = np.zeros((G, rep), acc)
    for b, g in np.ndindex(B, G):
        shift, n = int(offs[b]), min(N, int(lens[b]))
        splits = [slice(j, min(j + SPLIT, n)) for j in range(0, n, SPLIT)]
        # every split leaves its maximum, its sum and its share of rowsum(dO * O); then one merge
        ms = np.full((len(splits) + 1, R, 1), -np.inf, acc)
        ls, ts = np.zeros_like(ms), np.zeros_like(ms)
        for c, j in enumerate(splits):
            s, vis, _ = scores(b, g, j, shift)
            ms[c] = s.max(-1, keepdims=True)
            p = np.where(vis, np.exp(s - np.where(ms[c] == -np.inf, 0, ms[c])), 0)
            ls[c] = p.sum(-1, keepdims=True)
            ts[c] = np.where(vis, p * (do[b, g] @ v[b, g, j].T), 0).sum(-1, keepdims=True)
        if sinks is not None:
            ms[-1] = np.repeat(sinks[g * rep:(g + 1) * rep], M)[:, None]
            ls[-1] = 1
        top, live = ms.max(0), ~np.isneginf(ms[0])  # rows with nothing to see
        top = np.where(top == -np.inf, 0, top)
        w = np.exp(ms - top)
        total = (w * ls).sum(0)
        lse = top + np.log(np.where(total == 0, 1, total))
        delta = (w * ts).sum(0) / np.where(total == 0, 1, total)
        if sinks is not None:
            dsink[g] -= (np.exp(ms[-1] - lse) * delta).reshape(rep, M).sum(1)
        ring = np.zeros((SLOTS, R, D), acc)
        for c, j in enumerate(splits):
            s, vis, slope = scores(b, g, j, shift)
            vis = vis & live
            p = np.where(vis, np.exp(s - lse), 0)
            ds = np.where(vis, p * (do[b, g] @ v[b, g, j].T - delta), 0)
            if db is not None:
                db[b, g, :, j] = ds
            ds = np.where(vis, ds * slope, 0)
            dv[b, g, j] = _mm(p.T, do[b, g], vis.T)
            dk[b, g, j] = _mm(ds.T, q[b, g], vis.T)
            ring[c % SLOTS] += _mm(ds, k[b, g, j], vis)
        dq[b, g] = ring.sum(0)
    out = {"query": dq.reshape(query.shape), "key": dk.reshape(key.shape), "value": dv.reshape(value.shape)}
    if db is not None:
        db, shape = db.reshape(batch + (H, M, N)), attn_bias.shape
        db = db.sum(tuple(range(db.ndim - len(shape))))
        out["attn_bias"] = db.sum(tuple(a for a, e in enumerate(shape) if e == 1 and db.shape[a] != 1), keepdims=True)
    if sinks is not None:
        out["sinks"] = dsink.reshape(H)
    return {name: grad.astype(dtype) for name, grad in out.items()}


scaled_dot_product_attention_vjp.dtypes = ("float32", "float64")
