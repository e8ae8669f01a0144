"""After FlashAttention-2: a program per head and tile of queries, base-2 exponentials, masks on edge tiles only."""
import math

import numpy as np

BLOCK_M, BLOCK_N = 8, 8
LOG2E = math.log2(math.e)


def _cdiv(a, b):
    return -(-a // b)


def _tile(x, rows, cols):
    """A tile of a bias or mask whose axes of one stay."""
    r = slice(None) if x.shape[0] == 1 else rows
    c = slice(None) if x.shape[1] == 1 else cols
    return x[r, c]


def _program(q, k, v, mask, bias, start_m, offset, causal, left, right, scale, softcap, sink):
    """Output and lse of one tile of queries."""
    n, m = q.shape[0], k.shape[0]
    rows = slice(start_m, min(start_m + BLOCK_M, n))
    qi = np.arange(rows.start, rows.stop) + offset
    lo, hi = 0, m
    if causal:
        hi = min(hi, rows.stop + offset)
        right = 0 if right is None else min(right, 0)
    if right is not None:
        hi = min(hi, rows.stop + offset + right)
    if left is not None:
        lo = max(lo, rows.start + offset - left)
    first, last = lo // BLOCK_N, _cdiv(max(hi, 0), BLOCK_N)

    acc = np.zeros((len(qi), v.shape[1]))
    m_i = np.full(len(qi), -np.inf)
    l_i = np.zeros(len(qi))
    seen = np.zeros(len(qi), bool)
    qk_scale = scale * LOG2E
    for block in range(first, last):
        cols = slice(block * BLOCK_N, min((block + 1) * BLOCK_N, m))
        kj = np.arange(cols.start, cols.stop)
        if softcap is None:
            s = (q[rows] @ k[cols].T) * qk_scale
        else:
            s = softcap * LOG2E * np.tanh((q[rows] @ k[cols].T) * (scale / softcap))
        ok = np.ones(s.shape, bool)
        if bias is not None:
            tile = _tile(bias, rows, cols)
            s = s + tile * LOG2E
            ok &= tile != -np.inf
        if mask is not None:
            ok &= _tile(mask, rows, cols)
        if right is not None and cols.stop > qi[0] + right:
            ok &= kj <= qi[:, None] + right
        if left is not None and cols.start < qi[-1] - left:
            ok &= kj >= qi[:, None] - left
        s = np.where(ok, s, -np.inf)
        seen |= ok.any(1)
        m_new = np.maximum(m_i, s.max(1))
        m_safe = np.where(m_new == -np.inf, 0.0, m_new)
        p = np.exp2(s - m_safe[:, None])
        alpha = np.exp2(m_i - m_safe)
        l_i = l_i * alpha + p.sum(1)
        acc = acc * alpha[:, None] + p @ v[cols]
        m_i = m_new

    if sink is not None:
        sink2 = sink * LOG2E
        m_new = np.maximum(m_i, sink2)
        m_safe = np.where(m_new == -np.inf, 0.0, m_new)
        alpha = np.exp2(m_i - m_safe)
        l_i = l_i * alpha + np.exp2(sink2 - m_safe)
        acc = acc * alpha[:, None]
        m_i = m_new
    l_i = np.where(l_i == 0, np.nan, l_i)
    o = np.where(seen[:, None], acc / l_i[:, None], 0.0)
    lse = np.where(seen, (m_i + np.log2(l_i)) / LOG2E, -np.inf)
    return o, lse


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, scale=None, softcap=None, sinks=None, return_lse=False):
    *batch, H, n, d = query.shape
    G = key.shape[-3]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    left, right = (None, None) if window is None else window
    out = np.empty((*batch, H, n, value.shape[-1]), query.dtype)
    lse = np.empty((*batch, H, n), query.dtype)
    q, k, v = query.astype(np.float64), key.astype(np.float64), value.astype(np.float64)

    def per_head(x):
        return None if x is None else np.broadcast_to(x, (*batch, H, *x.shape[-2:]))

    mask, attn_bias = per_head(mask), per_head(attn_bias)
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, tuple(batch))
    for b in np.ndindex(*batch):
        for h in range(H):
            g = h // (H // G)
            for start_m in range(0, n, BLOCK_M):
                o, l = _program(
                    q[(*b, h)], k[(*b, g)], v[(*b, g)],
                    None if mask is None else mask[(*b, h)],
                    None if attn_bias is None else attn_bias[(*b, h)].astype(np.float64),
                    start_m, int(offsets[b]), is_causal, left, right, scale, softcap,
                    None if sinks is None else float(sinks[h]),
                )
                out[(*b, h)][start_m:start_m + BLOCK_M] = o
                lse[(*b, h)][start_m:start_m + BLOCK_M] = l
    return {"output": out, "lse": lse} if return_lse else out
