"""Flash-style attention in NumPy: tiles of queries and keys, online softmax, key range per query tile.

Each program handles one (batch, head, query tile). It visits the key tiles that the tile's rows can see, whole tiles
without any test and the rest with the mask. Weights go to the dtype of the call before the second product.
"""

import ml_dtypes
import numpy as np

dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"

BLOCK_M = 64
BLOCK_N = 32


def _flat(x, tail):
    return x.reshape((int(np.prod(x.shape[:-tail], dtype=int)),) + x.shape[-tail:])


def _per_batch(x, batch, default):
    if x is None:
        return [default] * int(np.prod(batch, dtype=int))
    return [int(v) for v in np.broadcast_to(np.asarray(x), batch).reshape(-1)]


def _tile_program(q, k, v, bias, mask, lo, hi, length, m0, scale, softcap, sink, dtype):
    """One tile of query rows of one head. lo, hi: key j is in the band of row i if i + lo <= j <= i + hi."""
    rows = np.arange(m0, min(m0 + BLOCK_M, q.shape[0]))
    first, last = int(rows[0]), int(rows[-1])
    q_tile = q[first:last + 1].astype(np.float32) * np.float32(scale)
    m_i = np.full(len(rows), -np.inf, np.float32)
    l_i = np.zeros(len(rows), np.float32)
    seen = np.zeros(len(rows), bool)
    acc = np.zeros((len(rows), v.shape[-1]), np.float32)

    n_begin = max(first + lo, 0) // BLOCK_N * BLOCK_N
    n_end = min(last + hi + 1, length)
    for n0 in range(n_begin, n_end, BLOCK_N):
        n1 = min(n0 + BLOCK_N, n_end)
        cols = np.arange(n0, n1)
        s = q_tile @ k[n0:n1].astype(np.float32).T
        if softcap is not None:
            s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
        whole = n0 >= last + lo and n1 - 1 <= first + hi
        if bias is not None or mask is not None or not whole:
            ok = np.ones(s.shape, bool)
            if not whole:
                ok &= (cols >= rows[:, None] + lo) & (cols <= rows[:, None] + hi)
            if mask is not None:
                ok &= mask[first:last + 1, n0:n1]
            if bias is not None:
                tile = bias[first:last + 1, n0:n1].astype(np.float32)
                ok &= tile != -np.inf
                s = s + tile
            s = np.where(ok, s, np.float32(-np.inf))
            seen |= ok.any(axis=-1)
        else:
            seen |= True
        m_new = np.maximum(m_i, s.max(axis=-1))
        m_use = np.where(m_new == -np.inf, np.float32(0), m_new)
        p = np.exp(s - m_use[:, None])
        alpha = np.exp(m_i - m_use)
        l_i = l_i * alpha + p.sum(axis=-1)
        acc = acc * alpha[:, None] + p.astype(dtype).astype(np.float32) @ v[n0:n1].astype(np.float32)
        m_i = m_new

    if sink is not None:
        m_new = np.maximum(m_i, np.float32(sink))
        m_use = np.where(m_new == -np.inf, np.float32(0), m_new)
        alpha = np.exp(m_i - m_use)
        l_i = l_i * alpha + np.exp(np.float32(sink) - m_use)
        acc = acc * alpha[:, None]
        m_i = m_new
    out = np.where(seen[:, None], acc / np.where(seen, l_i, 1)[:, None], 0)
    m_use = np.where(m_i == -np.inf, np.float32(0), m_i)
    lse = m_use + np.log(l_i)
    lse = np.where(seen & (l_i == 0), np.float32(np.nan), lse)
    return out, lse


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_lse=False,
):
    dtype = query.dtype
    batch, heads, q_len, d_k = query.shape[:-3], query.shape[-3], query.shape[-2], query.shape[-1]
    kv_heads, kv_len, d_v = value.shape[-3:]
    full = batch + (heads, q_len, kv_len)
    q, k, v = _flat(query, 3), _flat(key, 3), _flat(value, 3)
    mask = None if mask is None else _flat(np.broadcast_to(mask, full), 3)
    bias = None if attn_bias is None else _flat(np.broadcast_to(attn_bias, full), 3)
    lengths = _per_batch(kv_lengths, batch, kv_len)
    offsets = _per_batch(q_offset, batch, 0)
    scale = 1.0 / np.sqrt(d_k) if scale is None else scale
    left, right = (None, None) if window is None else window
    group = heads // kv_heads

    out = np.zeros(batch + (heads, q_len, d_v), dtype)
    lse = np.full(batch + (heads, q_len), -np.inf, np.float32)
    o, e = _flat(out, 3), _flat(lse, 2)
    reach = q_len + kv_len
    for b in range(len(o)):
        lo = -reach if left is None else offsets[b] - left
        hi = reach if right is None else offsets[b] + right
        if is_causal:
            hi = min(hi, offsets[b])
        lo, hi = (min(max(x, -reach), reach) for x in (lo, hi))
        length = min(max(lengths[b], 0), kv_len)
        for h in range(heads):
            g = h // group
            for m0 in range(0, q_len, BLOCK_M):
                m1 = min(m0 + BLOCK_M, q_len)
                o[b, h, m0:m1], e[b, h, m0:m1] = _tile_program(
                    q[b, h], k[b, g], v[b, g], None if bias is None else bias[b, h],
                    None if mask is None else mask[b, h], lo, hi, length, m0, scale, softcap,
                    None if sinks is None else sinks[h], dtype,
                )
    return {"output": out, "lse": lse} if return_lse else {"output": out}
