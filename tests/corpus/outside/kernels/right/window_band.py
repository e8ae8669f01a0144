"""Sliding-window attention: for a block of rows only the band of keys that the window reaches is read."""
import numpy as np

BQ, BK = 32, 32
INF = np.float32(np.inf)


def _vec(x, n, default):
    a = np.asarray(default if x is None else x, dtype=np.int64)
    return a.reshape(n) if a.ndim and a.size == n else np.broadcast_to(a, (n,))


def _pv(p, vis, v):
    fin = np.isfinite(v)
    if fin.all():
        return p @ v
    o = p @ np.where(fin, v, 0)
    for j in np.flatnonzero(~fin.all(-1).all((0, 1, 2))):
        bad = np.where(fin[..., j, :], 0, v[..., j, :])[..., None, :]
        o += np.where(vis[..., j, None], p[..., j, None] * bad, 0)
    return o


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, is_causal=False, q_offset=None, window=None,
                                 kv_lengths=None, scale=None, sinks=None, return_lse=False):
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Lk, Dv = value.shape[-3:]
    N, R = int(np.prod(lead)), H // max(G, 1)
    q = query.astype(np.float32).reshape(N, G, R, Lq, D)
    k = key.astype(np.float32, copy=False).reshape(N, G, 1, Lk, D)
    v = value.astype(np.float32, copy=False).reshape(N, G, 1, Lk, Dv)
    q = q * np.float32(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    left, right = window if window is not None else (None, None)
    left = Lq + Lk + 2 ** 40 if left is None else left
    right = Lq + Lk + 2 ** 40 if right is None else right
    if is_causal:
        right = min(right, 0)
    off, n = _vec(q_offset, N, 0), np.minimum(_vec(kv_lengths, N, Lk), Lk)
    out = np.zeros((N, G, R, Lq, Dv), np.float32)
    lse = np.full((N, G, R, Lq, 1), -INF)
    sink = None if sinks is None else np.asarray(sinks, np.float32).reshape(1, G, R, 1, 1)
    for i0 in range(0, Lq if N * H else 0, BQ):
        i1 = min(i0 + BQ, Lq)
        lo = max(0, i0 + int(off.min()) - left)
        hi = max(0, min(int(n.max()), i1 - 1 + int(off.max()) + right + 1))
        rows = np.arange(i0, i1)[:, None] + off[:, None, None, None, None]
        m = np.full((N, G, R, i1 - i0, 1), -INF)
        l, acc = np.zeros_like(m), np.zeros((N, G, R, i1 - i0, Dv), np.float32)
        for j0 in range(lo, hi, BK):
            j1 = min(j0 + BK, hi)
            cols = np.arange(j0, j1)
            vis = (cols >= rows - left) & (cols <= rows + right) & (cols < n[:, None, None, None, None])
            vis = np.broadcast_to(vis, (N, G, R, i1 - i0, j1 - j0))
            s = q[..., i0:i1, :] @ np.swapaxes(k[..., j0:j1, :], -1, -2)
            s = np.where(vis, s, -INF)
            m_new = np.maximum(m, s.max(-1, keepdims=True))
            ref = np.where(m_new == -INF, np.float32(0), m_new)
            p = np.exp(s - ref)
            l = l * np.exp(m - ref) + p.sum(-1, keepdims=True)
            acc = acc * np.exp(m - ref) + _pv(p, vis, v[..., j0:j1, :])
            m = m_new
        if sink is not None:
            top = np.maximum(m, sink)
            l, acc, m = l * np.exp(m - top) + np.exp(sink - top), acc * np.exp(m - top), top
        out[..., i0:i1, :] = acc / np.where(l > 0, l, 1)
        out[..., i0:i1, :] = np.where(l == 0, 0, out[..., i0:i1, :])
        lse[..., i0:i1, :] = m + np.log(l)
    out = out.reshape(lead + (H, Lq, Dv)).astype(query.dtype)
    if return_lse:
        return {"output": out, "lse": lse.reshape(lead + (H, Lq)).astype(query.dtype)}
    return out
