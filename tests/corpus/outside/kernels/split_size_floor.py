"""Split-K attention for short queries: heads of a group packed as rows, splits of keys, then a combine."""
import numpy as np

SPLIT, MAX_SPLITS = 128, 16


def _ints(x, n, default):
    a = np.asarray(default if x is None else x, dtype=np.int64)
    return (a.reshape(n) if a.ndim and a.size == n else np.broadcast_to(a, (n,)))[:, None, None, None]


def _pv(p, vis, v):
    fin = np.isfinite(v)
    if fin.all():
        return p @ v
    o = p @ np.where(fin, v, 0)
    vis = np.broadcast_to(vis, p.shape)
    for j in np.flatnonzero(~fin.all(-1).all((0, 1))):
        bad = np.where(fin[..., j, :], 0, v[..., j, :])[..., None, :]
        o += np.where(vis[..., j, None], p[..., j, None] * bad, 0)
    return o


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, mask=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None, sinks=None,
                                 return_lse=False):
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Lk, Dv = value.shape[-3:]
    N, R = int(np.prod(lead)), H // max(G, 1)
    ft = np.float64 if query.dtype == np.float64 else np.float32
    M = R * Lq
    q = query.astype(ft, copy=False).reshape(N, G, M, D)  # row r is head r // Lq of the group, query r % Lq
    k, v = key.reshape(N, G, Lk, D), value.reshape(N, G, Lk, Dv)
    if scale is None:
        scale = 1.0 / np.sqrt(max(D, 1))
    q = q * ft(scale)
    n = np.minimum(_ints(kv_lengths, N, Lk), Lk)
    off = _ints(q_offset, N, 0)
    pos = (np.arange(M) % max(Lq, 1))[:, None] + off
    left, right = (None, None) if window is None else window
    if is_causal:
        right = 0 if right is None else min(right, 0)
    if mask is not None:
        mask = np.broadcast_to(mask, lead + (H, Lq, Lk)).reshape(N, G, M, Lk)

    longest = int(n.max()) if N else 0
    S = max(1, min(MAX_SPLITS, -(-longest // SPLIT)))
    size = longest // S
    part_o = np.zeros((S, N, G, M, Dv), ft)
    part_lse = np.full((S, N, G, M, 1), -np.inf, ft)
    for sp in range(S):
        j0, j1 = sp * size, min((sp + 1) * size, longest)
        if j1 <= j0 or N * G * M == 0:
            continue
        cols = np.arange(j0, j1)
        vis = cols < n
        if right is not None:
            vis = vis & (cols <= pos + right)
        if left is not None:
            vis = vis & (cols >= pos - left)
        if mask is not None:
            vis = vis & mask[..., j0:j1]
        s = q @ np.swapaxes(k[..., j0:j1, :].astype(ft, copy=False), -1, -2)
        if softcap is not None:
            s = ft(softcap) * np.tanh(s / ft(softcap))
        s = np.where(vis, s, ft(-np.inf))
        m = s.max(-1, keepdims=True)
        m = np.where(np.isneginf(m), ft(0), m)
        p = np.exp(s - m)
        l = p.sum(-1, keepdims=True)
        part_o[sp] = _pv(p, vis, v[..., j0:j1, :].astype(ft, copy=False)) / np.where(l == 0, 1, l)
        part_lse[sp] = m + np.log(l)

    top = part_lse.max(0)
    if sinks is not None:
        sink = np.repeat(np.asarray(sinks, ft).reshape(1, G, R), Lq, -1)[..., None]
        top = np.maximum(top, sink)
    safe = np.where(np.isneginf(top), ft(0), top)
    w = np.exp(part_lse - safe)
    den = w.sum(0)
    if sinks is not None:
        den = den + np.exp(sink - safe)
    o = (w * part_o).sum(0) / np.where(den == 0, 1, den)
    o = o.reshape(lead + (H, Lq, Dv)).astype(query.dtype)
    if not return_lse:
        return o
    lse = (safe + np.log(den)).reshape(lead + (H, Lq)).astype(query.dtype)
    return {"output": o, "lse": lse}


scaled_dot_product_attention.dtypes = ("float32", "float64")
