"""Weight absorption as in the MLA decode kernels: for a few queries the key and value projections are
never made; w_k goes into the query and w_v behind the weighted sum of the raw values."""
import numpy as np

FEW = 4


def _project(x, w, b):
    y = x.astype(np.float32)[..., None, :, :] @ w.astype(np.float32)
    return y if b is None else y + b.astype(np.float32)[:, None, :]


def _weighted(p, v, keep):
    """p (..., H, T, S) with v (..., H or 1, S, D); keys that a row does not see are not read."""
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(0)):
        sees = keep[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                         b_o=None, mask=None, kv_lengths=None, scale=None, softcap=None, sinks=None,
                         return_weights=False, return_lse=False):
    dtype, lead = query.dtype, query.shape[:-2]
    h, _, d = w_q.shape
    g, d_kv, _ = w_k.shape
    rep, t, s = h // max(g, 1), query.shape[-2], key.shape[-2]
    absorbed = 0 < t <= FEW
    up = lambda w: np.repeat(w.astype(np.float32), rep, axis=0)
    keep = np.ones((1,) * (len(lead) + 1) + (t, s), bool)
    if mask is not None:
        keep = keep & mask
    if kv_lengths is not None:
        n = np.asarray(kv_lengths)
        keep = keep & (np.arange(s) < n.reshape(n.shape + (1,) * (len(lead) + 3 - n.ndim)))
    keep = np.broadcast_to(keep, lead + (h, t, s))
    with np.errstate(all="ignore"):
        q = _project(query, w_q, b_q)
        if absorbed:
            shift = 0                       # q . b_k is the same for all keys: softmax drops it
            q = q @ np.swapaxes(up(w_k), -1, -2)                     # (..., H, T, d_kv)
            k = key.astype(np.float32)[..., None, :, :]
            v = value.astype(np.float32)[..., None, :, :]
        else:
            shift = 0
            k = np.repeat(_project(key, w_k, b_k), rep, axis=-3)
            v = np.repeat(_project(value, w_v, b_v), rep, axis=-3)
        factor = 1.0 / np.sqrt(max(d, 1)) if scale is None else scale
        x = (q @ np.swapaxes(k, -1, -2) + shift) * np.float32(factor)
        if softcap is not None:
            x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
        x = np.where(keep, x, -np.inf)
        top = x.max(-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            sink = sinks.astype(np.float32)[:, None, None]
            top = np.maximum(top, sink)
        top = np.where(top == -np.inf, 0, top)
        p = np.where(keep, np.exp(x - top), 0)
        total = p.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        lse = (np.log(total) + top)[..., 0]
        p = p / np.where(total == 0, 1, total)
        ctx = _weighted(p, v, keep)
        if absorbed:
            ctx = ctx @ up(w_v)
            if b_v is not None:
                ctx = ctx + p.sum(-1, keepdims=True) * up(b_v)[:, None, :]
        out = np.einsum("...htv,hvo->...to", ctx, w_o.astype(np.float32), optimize=True)
        if b_o is not None:
            out = out + b_o.astype(np.float32)
    result = {"output": out.astype(dtype)}
    if return_weights:
        result["weights"] = p.astype(dtype)
    if return_lse:
        result["lse"] = lse.astype(dtype)
    return result if len(result) > 1 else result["output"]


multi_head_attention.dtypes = ("float32", "float16", "bfloat16")
