"""Attention for wide heads: d_k in chunks of 64, d_v in chunks of 128, the key tile by the width."""
import numpy as np

DK_CHUNK, DV_CHUNK = 64, 128


def _pv(p, vis, v):
    fin = np.isfinite(v)
    if fin.all():
        return p @ v
    o = p @ np.where(fin, v, 0)
    for j in np.flatnonzero(~fin.all(-1)):
        o += np.where(vis[:, j, None], p[:, j, None] * np.where(fin[j], 0, v[j]), 0)
    return o


def _qk(q, kt):
    """Scores of a tile, a chunk of the head at a time."""
    d = q.shape[1]
    s = np.zeros((q.shape[0], kt.shape[0]), np.float32)
    for c in range(0, d, DK_CHUNK):
        s += q[:, c:c + DK_CHUNK] @ kt[:, c:c + DK_CHUNK].T
    return s


def _read(x):
    return x.ravel(order="K").astype(np.float32).reshape(x.shape)  # the buffer as it lies in memory


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, scale=None, sinks=None, return_weights=False, return_lse=False):
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Lk, Dv = value.shape[-3:]
    N = int(np.prod(lead))
    q = _read(query).reshape(N * H, Lq, D)
    k, v = _read(key).reshape(N * G, Lk, D), _read(value).reshape(N * G, Lk, Dv)
    scale = np.float32(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    off = np.broadcast_to(0 if q_offset is None else np.asarray(q_offset), (N,))
    block = 64 if D <= 128 else 32

    def planes(x):
        x = np.broadcast_to(x, lead + (H, Lq, Lk))
        return x.reshape(N * H, Lq, Lk)
    mask = None if mask is None else planes(mask)
    bias = None if attn_bias is None else planes(attn_bias)
    out = np.zeros((N * H, Lq, Dv), np.float32)
    lse = np.full((N * H, Lq, 1), -np.inf, np.float32)
    weights = np.zeros((N * H, Lq, Lk), np.float32) if return_weights else None
    for z in range(N * H if Lq else 0):
        b, h = divmod(z, H)
        g = b * G + h // (H // G)
        m = np.full((Lq, 1), -np.inf, np.float32)
        l, acc = np.zeros_like(m), np.zeros((Lq, Dv), np.float32)
        tiles = []
        for t in range(-(-Lk // block)):
            j0, j1 = t * block, min((t + 1) * block, Lk)
            vis = np.ones((Lq, j1 - j0), bool)
            if is_causal:
                vis &= np.arange(j0, j1) <= np.arange(Lq)[:, None] + off[b]
            if mask is not None:
                vis &= mask[z, :, j0:j1]
            s = _qk(q[z], k[g, j0:j1]) * scale
            if bias is not None:
                s = s + bias[z, :, j0:j1]
            s = np.where(vis, s, np.float32(-np.inf))
            m_new = np.maximum(m, s.max(1, keepdims=True))
            safe = np.where(np.isneginf(m_new), np.float32(0), m_new)
            p, alpha = np.exp(s - safe), np.exp(m - safe)
            l = l * alpha + p.sum(1, keepdims=True)
            for c in range(0, Dv, DV_CHUNK):
                part = slice(c, min(c + DV_CHUNK, Dv))
                acc[:, part] *= alpha
                acc[:, part] += _pv(p, vis, v[g, j0:j1, part])
            m = m_new
            if return_weights:
                tiles.append((j0, j1, p, safe))
        if sinks is not None:
            top = np.maximum(m, np.float32(sinks[h]))
            alpha = np.exp(m - top)
            l, acc, m = l * alpha + np.exp(np.float32(sinks[h]) - top), acc * alpha, top
        inv = np.where(l == 0, 0, 1 / np.where(l == 0, 1, l))
        out[z] = np.where(l == 0, 0, acc * inv)
        lse[z] = m + np.log(l)
        for j0, j1, p, at in tiles:
            weights[z, :, j0:j1] = np.where(p == 0, 0, p * np.exp(at - np.where(np.isneginf(m), 0, m)) * inv)
    answer = {"output": out.reshape(lead + (H, Lq, Dv)).astype(query.dtype)}
    if return_weights:
        answer["weights"] = weights.reshape(lead + (H, Lq, Lk)).astype(query.dtype)
    if return_lse:
        answer["lse"] = lse.reshape(lead + (H, Lq)).astype(query.dtype)
    return answer if len(answer) > 1 else answer["output"]
