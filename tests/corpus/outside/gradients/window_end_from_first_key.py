"""FlashAttention-2 style backward: 64x64 tiles, weights recomputed from lse, delta = rowsum(dO * O)."""
import numpy as np

BM, BN = 64, 64


def _mm(p, x, vis):
    """p @ x in which a hidden pair adds nothing, whatever x holds there."""
    bad = ~np.isfinite(x).all(-1)
    if not bad.any():
        return p @ x
    out = p @ np.where(bad[:, None], 0, x)
    for j in np.flatnonzero(bad):
        out += np.where(vis[:, j, None], p[:, j, None] * x[j], 0)
    return out


def _unbroadcast(g, shape):
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(a for a, n in enumerate(shape) if n == 1 and g.shape[a] != 1), keepdims=True)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None,
                                     is_causal=False, q_offset=None, window=None, kv_lengths=None,
                                     scale=None, softcap=None, sinks=None, past_key=None, past_value=None):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    P = 0 if past_key is None else past_key.shape[-2]
    if past_key is not None:
        key, value = np.concatenate([past_key, key], -2), np.concatenate([past_value, value], -2)
    (G, N), E = key.shape[-3:-1], value.shape[-1]
    B, rep, f4, dtype = int(np.prod(batch)), H // G, np.float32, query.dtype
    q, k = query.reshape(B, H, M, D).astype(f4), key.reshape(B, G, N, D).astype(f4)
    v, do = value.reshape(B, G, N, E).astype(f4), grad_output.reshape(B, H, M, E).astype(f4)
    scale = f4(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    grid = lambda a: np.broadcast_to(a, batch + (H, M, N)).reshape(B, H, M, N)
    allow = None if mask is None else grid(mask)
    bias = None if attn_bias is None else grid(attn_bias)
    off = np.broadcast_to(N - M if q_offset is None else q_offset, (B,))
    lens = np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,))
    left, right = window if window is not None else (None, None)
    if is_causal:
        right = 0 if right is None else min(right, 0)

    def tile(b, h, i, j):
        """scores, visibility and d(score)/d(q k^T) of one tile."""
        x = (q[b, h, i] @ k[b, h // rep, j].T) * scale
        s, slope = x, scale
        if softcap is not None:
            s = f4(softcap) * np.tanh(x / f4(softcap))
            slope = scale * (1 - (s / f4(softcap)) ** 2)
        if bias is not None:
            s = s + bias[b, h, i, j].astype(f4)
        row, col = np.arange(M)[i, None] + off[b], np.arange(N)[j]
        vis = np.broadcast_to(col < lens[b], s.shape)
        vis = vis if right is None else vis & (col <= row + right)
        vis = vis if left is None else vis & (col >= row - left)
        vis = vis if allow is None else vis & allow[b, h, i, j]
        return np.where(vis, s, -np.inf), vis, slope

    dq, dk, dv = np.zeros((B, H, M, D), f4), np.zeros((B, H, N, D), f4), np.zeros((B, H, N, E), f4)
    db = None if bias is None else np.zeros((B, H, M, N), f4)
    dsink = np.zeros(H, f4)
    for b, h in np.ndindex(B, H):
        lse, delta = np.zeros((M, 1), f4), np.zeros((M, 1), f4)
        for i0 in range(0, M, BM):
            i = slice(i0, min(i0 + BM, M))
            m, l = np.full((i.stop - i0, 1), -np.inf, f4), np.zeros((i.stop - i0, 1), f4)
            o = np.zeros((i.stop - i0, E), f4)
            for j0 in range(0, N, BN):
                s, vis, _ = tile(b, h, i, slice(j0, j0 + BN))
                m_new = np.maximum(m, s.max(-1, keepdims=True))
                m_use = np.where(m_new == -np.inf, 0, m_new)
                p, r = np.where(vis, np.exp(s - m_use), 0), np.exp(m - m_use)
                l, m = l * r + p.sum(-1, keepdims=True), m_new
                o = o * r + _mm(p, v[b, h // rep, j0:j0 + BN], vis)
            if sinks is not None:
                m_new = np.maximum(m, f4(sinks[h]))
                m_use = np.where(m_new == -np.inf, 0, m_new)
                r = np.exp(m - m_use)
                l, o, m = l * r + np.exp(f4(sinks[h]) - m_use), o * r, m_new
            lse[i] = np.where(l == 0, 0, m + np.log(np.where(l == 0, 1, l)))
            delta[i] = (do[b, h, i] * (o / np.where(l == 0, 1, l))).sum(-1, keepdims=True)
            if sinks is not None:
                dsink[h] -= (np.exp(f4(sinks[h]) - lse[i]) * delta[i]).sum()
        for j0 in range(0, min(N, int(lens[b])), BN):
            j, j1 = slice(j0, j0 + BN), min(j0 + BN, N)
            lo = 0 if right is None else max(0, (j0 - right - int(off[b])) // BM * BM)
            hi = M if left is None else min(M, j0 + 1 + left - int(off[b]))
            for i0 in range(lo, hi, BM):
                i = slice(i0, i0 + BM)
                s, vis, slope = tile(b, h, i, j)
                p = np.where(vis, np.exp(s - lse[i]), 0)
                ds = np.where(vis, p * (do[b, h, i] @ v[b, h // rep, j].T - delta[i]), 0)
                dv[b, h, j] += _mm(p.T, do[b, h, i], vis.T)
                if db is not None:
                    db[b, h, i, j] = ds
                ds = np.where(vis, ds * slope, 0)
                dq[b, h, i] += _mm(ds, k[b, h // rep, j], vis)
                dk[b, h, j] += _mm(ds.T, q[b, h, i], vis.T)
    dk, dv = dk.reshape(B, G, rep, N, D), dv.reshape(B, G, rep, N, E)
    dk, dv = dk.sum(2), dv.sum(2)
    dk, dv = dk.reshape(batch + (G, N, D)).astype(dtype), dv.reshape(batch + (G, N, E)).astype(dtype)
    out = {"query": dq.reshape(query.shape).astype(dtype), "key": dk[..., P:, :], "value": dv[..., P:, :]}
    if past_key is not None:
        out["past_key"], out["past_value"] = dk[..., :P, :], dv[..., :P, :]
    if db is not None:
        out["attn_bias"] = _unbroadcast(db.reshape(batch + (H, M, N)), attn_bias.shape).astype(dtype)
    if sinks is not None:
        out["sinks"] = dsink.astype(dtype)
    return out
