"""Cascade attention: one pass over the cached prefix, one over the new keys, the two merged by their lse."""
import numpy as np

CHUNK = 256


def _pv(p, vis, v):
    fin = np.isfinite(v)
    if fin.all():
        return p @ v
    o = p @ np.where(fin, v, 0)
    for j in np.flatnonzero(~fin.all(-1).all((0, 1, 2))):
        bad = np.where(fin[..., j, :], 0, v[..., j, :])[..., None, :]
        o += np.where(vis[..., j, None], p[..., j, None] * bad, 0)
    return o


def _merge(o1, e1, o2, e2):
    """Two normalised partial outputs and their lse."""
    top = np.maximum(e1, e2)
    top = np.where(np.isneginf(top), np.float32(0), top)
    w1, w2 = np.exp(e1 - top), np.exp(e2 - top)
    den = w1 + w2
    o = (np.where(w1 == 0, 0, o1 * w1) + np.where(w2 == 0, 0, o2 * w2)) / np.where(den == 0, 1, den)
    return o, top + np.log(den)


def _part(q, k, v, visible, bias, softcap):
    """Attention of all rows over one run of keys, in chunks."""
    o = np.zeros(q.shape[:-1] + v.shape[-1:], np.float32)
    e = np.full(q.shape[:-1] + (1,), -np.inf, np.float32)
    for j0 in range(0, k.shape[-2] if q.size or q.shape[-2] else 0, CHUNK):
        j1 = min(j0 + CHUNK, k.shape[-2])
        vis = np.broadcast_to(visible(j0, j1), q.shape[:-1] + (j1 - j0,))
        s = q @ np.swapaxes(k[..., j0:j1, :], -1, -2)
        if softcap is not None:
            s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
        if bias is not None:
            s = s + bias[..., j0:j1]
        s = np.where(vis, s, np.float32(-np.inf))
        m = s.max(-1, keepdims=True, initial=-np.inf)
        m = np.where(np.isneginf(m), np.float32(0), m)
        p = np.exp(s - m)
        l = p.sum(-1, keepdims=True)
        o, e = _merge(o, e, _pv(p, vis, v[..., j0:j1, :]) / np.where(l == 0, 1, l), m + np.log(l))
    return o, e


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, window=None, scale=None, softcap=None,
                                 past_key=None, past_value=None, return_lse=False):
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Ln, Dv = value.shape[-3:]
    N, R = int(np.prod(lead)), H // max(G, 1)
    P = 0 if past_key is None else past_key.shape[-2]
    Lk = P + Ln
    f32 = np.float32
    scale = f32(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    q = query.astype(f32).reshape(N, G, R, Lq, D) * scale
    off = np.broadcast_to(0 if q_offset is None else np.asarray(q_offset), (N,)).reshape(N, 1, 1, 1, 1)
    pos = np.arange(Lq)[:, None] + off
    left, right = (None, None) if window is None else window

    def full(x):
        return np.broadcast_to(x, lead + (H, Lq, Lk)).reshape(N, G, R, Lq, Lk)
    mask = None if mask is None else full(mask)
    bias = None if attn_bias is None else full(attn_bias)

    def run(kk, vv, base, limits):
        """One pass over the keys that stand at base .. base + length."""
        length = kk.shape[-2]

        def visible(j0, j1):
            cols = np.arange(base + j0, base + j1)
            vis = np.ones((1, 1, 1, 1, j1 - j0), bool)
            if is_causal and limits:
                vis = vis & (cols <= pos)
            if left is not None and limits:
                vis = vis & (cols >= pos - left)
            if right is not None and limits:
                vis = vis & (cols <= pos + right)
            return vis if mask is None else vis & mask[..., base + j0:base + j1]
        part_bias = None if bias is None else bias[..., base:base + length]
        return _part(q, kk.astype(f32).reshape(N, G, 1, length, D), vv.astype(f32).reshape(N, G, 1, length, Dv),
                     visible, part_bias, softcap)
    o, e = run(key, value, P, True)
    if P:
        o1, e1 = run(past_key, past_value, 0, True)
        w1, w2 = np.exp(e1), np.exp(e)
        o = (o1 * w1 + o * w2) / np.where(w1 + w2 == 0, 1, w1 + w2)
        e = np.log(w1 + w2)
    answer = {"output": o.reshape(lead + (H, Lq, Dv)).astype(query.dtype)}
    if return_lse:
        answer["lse"] = e.reshape(lead + (H, Lq)).astype(query.dtype)
    if past_key is not None:
        answer["present_key"] = np.concatenate([past_key, key], -2)
        answer["present_value"] = np.concatenate([past_value, value], -2)
    return answer if len(answer) > 1 else answer["output"]
