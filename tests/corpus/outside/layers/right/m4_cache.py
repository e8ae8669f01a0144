"""Attention layer of a decoder with a key-value cache, after the Hugging Face port: project, append
to the cache, then query blocks of BLOCK rows, each against the keys from the first its window reaches."""
import numpy as np

BLOCK = 64


def _project(x, w, b):
    y = x.astype(np.float32)[..., None, :, :] @ w.astype(np.float32)
    return y if b is None else y + b.astype(np.float32)[:, None, :]


def _append(past, new):
    if past is None:
        return new
    out = np.empty(new.shape[:-2] + (past.shape[-2] + new.shape[-2], new.shape[-1]), np.float32)
    out[..., :past.shape[-2], :] = past
    out[..., past.shape[-2]:, :] = new
    return out


def _values(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(0)):
        sees = keep[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                         b_o=None, is_causal=False, q_offset=None, window=None, scale=None,
                         mask=None, past_key=None, past_value=None, return_lse=False):
    dtype, lead = query.dtype, query.shape[:-2]
    h, _, d = w_q.shape
    g, _, dv = w_v.shape
    rep, t = h // max(g, 1), query.shape[-2]
    scale = np.float32(1.0 / np.sqrt(max(d, 1)) if scale is None else scale)
    with np.errstate(all="ignore"):
        q = _project(query, w_q, b_q) * scale
        cache_k = _append(past_key, _project(key, w_k, b_k))
        cache_v = _append(past_value, _project(value, w_v, b_v))
        s = cache_k.shape[-2]
        k, v = np.repeat(cache_k, rep, -3), np.repeat(cache_v, rep, -3)
        kt = np.swapaxes(k, -1, -2)
        off = np.asarray(0 if q_offset is None else q_offset)
        off = off.reshape(off.shape + (1,) * (len(lead) + 3 - off.ndim))
        left, right = (None, None) if window is None else window
        if mask is not None:
            mask = np.broadcast_to(mask, mask.shape[:-2] + (t, s))
        ctx = np.zeros(lead + (h, t, dv), np.float32)
        lse = np.zeros(lead + (h, t), np.float32)
        for start in range(0, t, BLOCK):
            stop = min(start + BLOCK, t)
            pos = np.arange(start, stop)[:, None] + off
            first = 0 if left is None or not pos.size else min(max(int(pos.min()) - left, 0), s)
            col = np.arange(first, s)
            keep = np.ones(lead + (h, stop - start, s - first), bool)
            if is_causal:
                keep &= col <= pos
            if left is not None:
                keep &= col >= pos - left
            if right is not None:
                keep &= col <= pos + right
            if mask is not None:
                keep &= mask[..., start:stop, first:]
            x = np.where(keep, q[..., start:stop, :] @ kt[..., first:], -np.inf)
            top = x.max(-1, keepdims=True, initial=-np.inf)
            top = np.where(top == -np.inf, 0, top)
            p = np.where(keep, np.exp(x - top), 0)
            total = p.sum(-1, keepdims=True)
            ctx[..., start:stop, :] = _values(p, v[..., first:, :], keep) / np.where(total == 0, 1, total)
            lse[..., start:stop] = (np.log(total) + top)[..., 0]
        merged = np.moveaxis(ctx, -3, -2).reshape(lead + (t, h * dv))
        out = merged @ w_o.astype(np.float32).reshape(h * dv, w_o.shape[-1])
        if b_o is not None:
            out = out + b_o.astype(np.float32)
    result = {"output": out.astype(dtype)}
    if return_lse:
        result["lse"] = lse.astype(dtype)
    if past_key is not None:
        result["present_key"], result["present_value"] = cache_k.astype(dtype), cache_v.astype(dtype)
    return result if len(result) > 1 else result["output"]


multi_head_attention.dtypes = ("float32", "float16", "bfloat16")
