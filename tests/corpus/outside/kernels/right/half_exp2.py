"""16-bit forward kernel: float32 sums, weights rounded to the storage type, exp2 with log2(e) folded in."""
import numpy as np
import ml_dtypes

TILE, SPLIT = 128, 512  # keys of a tile, keys of a split
LOG2E, LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)


def _pv(p, vis, v):
    fin = np.isfinite(v)
    if fin.all():
        return p @ v
    o = p @ np.where(fin, v, 0)
    for j in np.flatnonzero(~fin.all(-1).all((0, 1, 2))):
        bad = np.where(fin[..., j, :], 0, v[..., j, :])[..., None, :]
        o += np.where(vis[..., j, None], p[..., j, None] * bad, 0)
    return o


def _exp2(x):
    return np.exp2(x)


def _cap(s, c):
    return c * np.tanh(s / c)


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, scale=None, softcap=None, return_lse=False):
    store = query.dtype
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Lk, Dv = value.shape[-3:]
    N, R = int(np.prod(lead)), H // max(G, 1)
    f32 = np.float32
    q = query.astype(f32).reshape(N, G, R, Lq, D)
    k = key.reshape(N, G, 1, Lk, D)
    v = value.reshape(N, G, 1, Lk, Dv)
    scale = f32(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    off = np.broadcast_to(0 if q_offset is None else np.asarray(q_offset), (N,)).reshape(N, 1, 1, 1, 1)

    def full(x):
        return np.broadcast_to(x, lead + (H, Lq, Lk)).reshape(N, G, R, Lq, Lk)
    mask = None if mask is None else full(mask)
    bias = None if attn_bias is None else full(attn_bias)
    pos = np.arange(Lq)[:, None] + off
    o_sum = np.zeros((N, G, R, Lq, Dv), f32)
    top = np.full((N, G, R, Lq, 1), -np.inf, f32)
    den = np.zeros_like(top)
    for s0 in range(0, Lk if N * H * Lq else 0, SPLIT):
        m = np.full_like(top, -np.inf)
        l, acc = np.zeros_like(m), np.zeros_like(o_sum)
        for j0 in range(s0, min(s0 + SPLIT, Lk), TILE):
            j1 = min(j0 + TILE, s0 + SPLIT, Lk)
            cols = np.arange(j0, j1)
            vis = np.ones((N, G, R, Lq, j1 - j0), bool)
            if is_causal:
                vis &= cols <= pos
            if mask is not None:
                vis &= mask[..., j0:j1]
            s = q @ np.swapaxes(k[..., j0:j1, :].astype(f32), -1, -2)
            s *= scale
            if softcap is not None:
                s = _cap(s, f32(softcap))
            if bias is not None:
                s = s + bias[..., j0:j1].astype(f32)
            s = np.where(vis, s, f32(-np.inf))
            m_new = np.maximum(m, s.max(-1, keepdims=True))
            safe = np.where(np.isneginf(m_new), f32(0), m_new)
            p, alpha = _exp2((s - safe) * LOG2E), np.exp2((m - safe) * LOG2E)
            l = l * alpha + p.sum(-1, keepdims=True)
            acc = acc * alpha + _pv(p.astype(store).astype(f32), vis, v[..., j0:j1, :].astype(f32))
            m = m_new
        both = np.maximum(top, m)
        safe = np.where(np.isneginf(both), f32(0), both)
        a, c = np.exp2((top - safe) * LOG2E), np.exp2((m - safe) * LOG2E)
        o_sum = o_sum * a + acc * c
        den, top = den * a + l * c, both
    out = np.where(den == 0, 0, o_sum / np.where(den == 0, 1, den))
    out = out.reshape(lead + (H, Lq, Dv)).astype(store)
    if not return_lse:
        return out
    lse = top + np.log2(den) * LN2
    return {"output": out, "lse": lse.reshape(lead + (H, Lq)).astype(store)}


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
scaled_dot_product_attention.accuracy = "fused"
