"""Forward attention in the FlashAttention-2 order: a block of query rows, then tiles of keys."""
import math
import numpy as np

BLOCK_M, BLOCK_N = 64, 128


def _per_entry(x, n, default):
    a = np.asarray(default if x is None else x, dtype=np.int64)
    return a.reshape(n) if a.ndim and a.size == n else np.broadcast_to(a, (n,))


def _pv(p, vis, v):
    """p @ v; a slot that a row does not see gives that row nothing, NaN included."""
    fin = np.isfinite(v)
    if fin.all():
        return p @ v
    out = p @ np.where(fin, v, 0)
    vis = np.broadcast_to(vis, p.shape)
    for j in np.flatnonzero(~fin.all(-1).all((0, 1, 2))):
        bad = np.where(fin[..., j, :], 0, v[..., j, :])[..., None, :]
        out += np.where(vis[..., j, None], p[..., j, None] * bad, 0)
    return out


def _tile(x, r0, r1, c0, c1):
    """Rows r0:r1, columns c0:c1 of a mask or bias whose last two axes may be 1; padded to BLOCK_N."""
    x = x[..., r0:r1, :] if x.shape[-2] > 1 else x
    x = x[..., c0:c1] if x.shape[-1] > 1 else np.repeat(x, c1 - c0, -1)
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, BLOCK_N - (c1 - c0))])


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, kv_lengths=None, scale=None, softcap=None,
                                 sinks=None, return_lse=False):
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Lk, Dv = value.shape[-3:]
    N, R = int(np.prod(lead)), H // max(G, 1)
    q = query.astype(np.float32).reshape(N, G, R, Lq, D)
    k, v = key.reshape(N, G, 1, Lk, D), value.reshape(N, G, 1, Lk, Dv)

    def grid(x):  # (N, G, R, 1 or Lq, 1 or Lk)
        a, b = x.shape[-2:]
        return np.broadcast_to(x, lead + (H, a, b)).reshape(N, G, R, a, b)
    mask = None if mask is None else grid(np.atleast_2d(mask))
    bias = None if attn_bias is None else grid(np.atleast_2d(attn_bias))
    off = _per_entry(q_offset, N, 0)[:, None, None, None, None]
    n = np.minimum(_per_entry(kv_lengths, N, Lk), Lk)[:, None, None, None, None]
    scale = 1.0 / math.sqrt(max(D, 1)) if scale is None else scale
    out = np.zeros((N, G, R, Lq, Dv), np.float32)
    lse = np.full((N, G, R, Lq), -np.inf, np.float32)
    if N * H * Lq == 0:
        return _answer(out, lse, query, lead, H, Lq, Dv, return_lse)
    sink = None if sinks is None else np.asarray(sinks, np.float32).reshape(1, G, R, 1, 1)

    for blk in range(-(-Lq // BLOCK_M)):
        i0 = min(blk * BLOCK_M, max(Lq - BLOCK_M, 0))  # the last block is moved back to stay full
        i1 = min(i0 + BLOCK_M, Lq)
        pos = np.arange(i0, i1)[:, None] + off
        hi = int(min(n.max(), pos.max() + 1)) if is_causal else int(n.max())
        m = np.full((N, G, R, i1 - i0, 1), -np.inf, np.float32)
        l = np.zeros_like(m)
        acc = np.zeros((N, G, R, i1 - i0, Dv), np.float32)
        for j0 in range(0, hi, BLOCK_N):
            j1 = min(j0 + BLOCK_N, Lk)
            kt = np.zeros((N, G, 1, BLOCK_N, D), np.float32)
            vt = np.zeros((N, G, 1, BLOCK_N, Dv), np.float32)
            kt[..., :j1 - j0, :], vt[..., :j1 - j0, :] = k[..., j0:j1, :], v[..., j0:j1, :]
            cols = np.arange(j0, j0 + BLOCK_N)
            vis = np.ones((N, 1, 1, 1, BLOCK_N), bool)
            if j0 + BLOCK_N > n.min():
                vis = vis & (cols < n)
            if is_causal and j0 + BLOCK_N > pos.min() + 1:
                vis = vis & (cols <= pos)
            if mask is not None:
                mt = _tile(mask, i0, i1, j0, j1)
                if not mt.any():
                    continue  # nothing of this tile is visible to any row
                vis = vis & mt
            s = (q[..., i0:i1, :] @ np.swapaxes(kt, -1, -2)) * np.float32(scale)
            if softcap is not None:
                e = np.exp(s * np.float32(2 / softcap))
                s = np.float32(softcap) * (e - 1) / (e + 1)
            if bias is not None:
                s = s + _tile(bias, i0, i1, j0, j1)
            s = np.where(vis, s, np.float32(-np.inf))
            m_new = np.maximum(m, s.max(-1, keepdims=True))
            m_safe = np.where(np.isneginf(m_new), np.float32(0), m_new)
            p = np.exp(s - m_safe)
            alpha = np.exp(m - m_safe)
            l = l * alpha + p.sum(-1, keepdims=True)
            acc = acc * alpha + _pv(p, vis, vt)
            m = m_new
        if sink is not None:
            m_new = np.maximum(m, sink)
            alpha = np.exp(m - m_new)
            l, acc, m = l * alpha + np.exp(sink - m_new), acc * alpha, m_new
        out[..., i0:i1, :] = np.where(l == 0, 0, acc / np.where(l == 0, 1, l))
        lse[..., i0:i1] = (m + np.log(l))[..., 0]
    return _answer(out, lse, query, lead, H, Lq, Dv, return_lse)


def _answer(out, lse, query, lead, H, Lq, Dv, return_lse):
    out = out.reshape(lead + (H, Lq, Dv)).astype(query.dtype)
    return {"output": out, "lse": lse.reshape(lead + (H, Lq)).astype(query.dtype)} if return_lse else out
