"""Serving adapter: up to PACK new tokens go through the decode path, where the rep query heads of a
group (times the tokens) are the rows of one product and the keys are cut into splits that are merged
by their lse; more tokens go through the prefill path, one query block at a time."""
import numpy as np

PACK, SPLIT, BLOCK = 4, 128, 128


def _values(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(0)):
        sees = np.broadcast_to(keep, p.shape)[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def _part(q, k, v, keep, softcap):
    x = q @ np.swapaxes(k, -1, -2)
    if softcap is not None:
        x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
    x = np.where(keep, x, -np.inf)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    safe = np.where(top == -np.inf, 0, top)
    p = np.where(keep, np.exp(x - safe), 0)
    total = p.sum(-1, keepdims=True)
    out = _values(p, v, keep) / np.where(total == 0, 1, total)
    return out, (np.log(total) + safe)


def _merge(parts, sink):
    """Outputs of the splits, each with its lse, and the sink -> output, lse."""
    lses = np.stack([lse for _, lse in parts] + ([sink] if sink is not None else []))
    top = lses.max(0)
    safe = np.where(top == -np.inf, 0, top)
    weights = np.exp(lses - safe)
    total = weights.sum(0)
    out = sum(w * o for w, (o, _) in zip(weights, parts)) / np.where(total == 0, 1, total)
    return out, np.log(total) + safe


def scaled_dot_product_attention(query, key, value, *, mask=None, is_causal=False, q_offset=None,
                                 kv_lengths=None, scale=None, softcap=None, sinks=None, return_lse=False):
    dtype, lead = query.dtype, query.shape[:-3]
    h, t, d = query.shape[-3:]
    g, s, dv = value.shape[-3:]
    rep = h // max(g, 1)
    scale = 1.0 / np.sqrt(max(d, 1)) if scale is None else scale
    q = query.astype(np.float32) * np.float32(scale)
    k, v = key.astype(np.float32), value.astype(np.float32)
    batch = lambda x: np.asarray(x).reshape(np.shape(x) + (1,) * (len(lead) + 3 - np.ndim(x)))
    off = batch(0 if q_offset is None else q_offset)
    lens = batch(s if kv_lengths is None else kv_lengths)
    col = np.arange(s)

    def rows(i, heads_first):
        """What the rows see; i: token of each row, heads_first: a mask with the heads in front."""
        keep = col < lens
        if is_causal:
            keep = keep & (col <= i[:, None] + off)
        return keep if heads_first is None else keep & heads_first

    with np.errstate(all="ignore"):
        if 0 < t <= PACK:
            q = q.reshape(lead + (g, rep * t, d))
            m = None
            if mask is not None:
                m = np.broadcast_to(mask, lead + (h, t, s)).reshape(lead + (g, rep * t, s))
            keep = np.broadcast_to(rows(np.arange(rep * t) // max(rep, 1), m), lead + (g, rep * t, s))
            sink = None
            if sinks is not None:
                sink = np.repeat(sinks.astype(np.float32).reshape(g, rep), t, -1)[..., None]
                sink = np.broadcast_to(sink, lead + (g, rep * t, 1))
            parts = [_part(q, k[..., a:a + SPLIT, :], v[..., a:a + SPLIT, :], keep[..., a:a + SPLIT], softcap)
                     for a in range(0, max(s, 1), SPLIT)]
            out, lse = _merge(parts, sink)
            out, lse = out.reshape(lead + (h, t, dv)), lse.reshape(lead + (h, t))
        else:
            out = np.zeros(lead + (h, t, dv), np.float32)
            lse = np.zeros(lead + (h, t), np.float32)
            k, v = np.repeat(k, rep, -3), np.repeat(v, rep, -3)
            m = None if mask is None else np.broadcast_to(mask, lead + (h, t, s))
            for a in range(0, t, BLOCK):
                i = np.arange(a, min(a + BLOCK, t))
                keep = rows(i, None if m is None else m[..., a:a + BLOCK, :])
                keep = np.broadcast_to(keep, lead + (h, len(i), s))
                part = _part(q[..., a:a + BLOCK, :], k, v, keep, softcap)
                sink = None
                if sinks is not None:
                    sink = np.broadcast_to(sinks.astype(np.float32)[:, None, None], part[1].shape)
                o, l = _merge([part], sink)
                out[..., a:a + BLOCK, :], lse[..., a:a + BLOCK] = o, l[..., 0]
    out = out.astype(dtype)
    return {"output": out, "lse": lse.astype(dtype)} if return_lse else out


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
