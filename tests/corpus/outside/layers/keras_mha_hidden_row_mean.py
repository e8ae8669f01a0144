"""keras.layers.MultiHeadAttention on NumPy: EinsumDense-like projections done as one flat product,
the boolean mask built once, a Softmax layer with a mask, then the combining projection."""
import numpy as np


def _dense(x, w, b):
    """(..., T, D) x (N, D, H) -> (..., N, T, H), as one (rows, D) x (D, N*H) product."""
    n, d, width = w.shape
    kernel = w.astype(np.float32).transpose(1, 0, 2).reshape(d, n * width)
    y = x.astype(np.float32).reshape(int(np.prod(x.shape[:-1])), d) @ kernel
    y = y.reshape(x.shape[:-1] + (n, width))
    if b is not None:
        y = y + b.astype(np.float32)
    return np.swapaxes(y, -3, -2)


def _compute_mask(lead, h, t, s, mask, causal, q_offset, lengths):
    wide = lambda x: np.asarray(x).reshape(np.shape(x) + (1,) * (len(lead) + 3 - np.ndim(x)))
    keep = np.ones((1,) * (len(lead) + 1) + (t, s), bool)
    if mask is not None:
        keep = keep & mask
    if causal:
        keep = keep & (np.arange(s) <= np.arange(t)[:, None] + wide(0 if q_offset is None else q_offset))
    if lengths is not None:
        keep = keep & (np.arange(s) < wide(lengths))
    return np.broadcast_to(keep, lead + (h, t, s))


def _softmax(x, keep):
    x = np.where(keep, x, np.float32(-1e9))
    e = np.exp(x - x.max(-1, keepdims=True, initial=-1e9))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _context(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(0)):
        sees = keep[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def _combine(ctx, w_o, b_o):
    """(..., N, T, V) -> (..., T, N*V) -> (..., T, out)."""
    n, width, d_out = w_o.shape
    flat = np.swapaxes(ctx, -3, -2).reshape(ctx.shape[:-3] + (ctx.shape[-2], n * width))
    y = flat @ w_o.astype(np.float32).reshape(n * width, d_out)
    return y if b_o is None else y + b_o.astype(np.float32)


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                         b_o=None, mask=None, is_causal=False, q_offset=None, kv_lengths=None,
                         scale=None, attn_bias=None, return_weights=False):
    dtype, lead = query.dtype, query.shape[:-2]
    h, _, d = w_q.shape
    g = w_k.shape[0]
    t, s = query.shape[-2], key.shape[-2]
    scale = np.float32(1.0 / np.sqrt(max(d, 1)) if scale is None else scale)
    with np.errstate(all="ignore"):
        q = _dense(query, w_q, b_q) * scale
        k = np.repeat(_dense(key, w_k, b_k), h // max(g, 1), axis=-3)
        v = np.repeat(_dense(value, w_v, b_v), h // max(g, 1), axis=-3)
        keep = _compute_mask(lead, h, t, s, mask, is_causal, q_offset, kv_lengths)
        x = q @ np.swapaxes(k, -1, -2)
        if attn_bias is not None:
            x = x + attn_bias.astype(np.float32)
        p = _softmax(x, keep)
        out = _combine(_context(p, v, keep), w_o, b_o).astype(dtype)
    return {"output": out, "weights": p.astype(dtype)} if return_weights else out


multi_head_attention.dtypes = ("float32", "float16", "bfloat16")
