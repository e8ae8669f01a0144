"""Low-memory layer: the leading axes become one, heads are taken HEADS at a time and each batch of
heads is projected, attended and added into the output at once; long reductions go in K_STEP steps."""
import numpy as np

HEADS, K_STEP = 4, 128


def _gemm(x, w):
    """x (N, L, D) with w (C, D, d) -> (N, C, L, d); the sum over D in steps, as the device code."""
    x, w = x.astype(np.float32)[:, None], w.astype(np.float32)
    depth = x.shape[-1]
    if depth <= K_STEP:
        return x @ w
    acc = np.zeros((x.shape[0], w.shape[0], x.shape[2], w.shape[2]), np.float32)
    for a in range(0, depth, K_STEP):
        acc += x[..., a:a + K_STEP] @ w[:, a:a + K_STEP]
    return acc


def _values(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.any((0, 1))):
        sees = keep[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def _flat_mask(mask, lead, n):
    """Full-rank mask -> (n, H or 1, T or 1, S or 1)"""
    if mask.ndim == 2:
        return mask[None, None]
    rest = mask.shape[-3:]
    return np.broadcast_to(mask, lead + rest).reshape((n,) + rest)


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                         b_o=None, mask=None, is_causal=False, q_offset=None, kv_lengths=None,
                         scale=None, sinks=None):
    dtype, lead = query.dtype, query.shape[:-2]
    h, _, d = w_q.shape
    g = w_k.shape[0]
    rep, t, s, n = h // max(g, 1), query.shape[-2], key.shape[-2], int(np.prod(lead))
    scale = np.float32(1.0 / np.sqrt(max(d, 1)) if scale is None else scale)
    flat = lambda x: x.reshape((n,) + x.shape[-2:])
    x_q, x_k, x_v = flat(query), flat(key), flat(value)

    def per_entry(x):
        x = np.asarray(x)
        return np.broadcast_to(x.reshape(x.shape + (1,) * (len(lead) - x.ndim)), lead).reshape(n, 1, 1, 1)

    keep = np.ones((1, 1, t, s), bool)
    if mask is not None:
        keep = keep & _flat_mask(mask, lead, n)
    if is_causal:
        keep = keep & (np.arange(s) <= np.arange(t)[:, None] + per_entry(0 if q_offset is None else q_offset))
    if kv_lengths is not None:
        keep = keep & (np.arange(s) < per_entry(kv_lengths))
    out = np.zeros((n, t, w_o.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        for a in range(0, h, HEADS):
            heads = np.arange(a, min(a + HEADS, h))
            groups, back = np.unique(heads // max(rep, 1), return_inverse=True)
            add = lambda y, b, rows: y if b is None else y + b[rows].astype(np.float32)[:, None, :]
            q = add(_gemm(x_q, w_q[heads]), b_q, heads) * scale
            k = add(_gemm(x_k, w_k[groups]), b_k, groups)[:, back]
            v = add(_gemm(x_v, w_v[groups]), b_v, groups)[:, back]
            see = keep[:, heads] if keep.shape[1] > 1 else keep
            see = np.broadcast_to(see, (n, len(heads), t, s))
            x = np.where(see, q @ k.swapaxes(-1, -2), -np.inf)
            top = x.max(-1, keepdims=True, initial=-np.inf)
            if sinks is not None:
                sink = sinks[heads].astype(np.float32)[:, None, None]
                top = np.maximum(top, sink)
            top = np.where(top == -np.inf, 0, top)
            p = np.where(see, np.exp(x - top), 0)
            total = p.sum(-1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sink - top)
            ctx = _values(p, v, see) / np.where(total == 0, 1, total)
            ctx = ctx.transpose(0, 2, 1, 3).reshape(n, t, len(heads) * w_o.shape[1])
            out += ctx @ w_o[heads].astype(np.float32).reshape(len(heads) * w_o.shape[1], w_o.shape[2])
            if b_o is not None:
                out += b_o.astype(np.float32)
    return out.reshape(lead + (t, w_o.shape[-1])).astype(dtype)


multi_head_attention.dtypes = ("float32", "float16", "bfloat16")
