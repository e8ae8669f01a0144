"""FlashAttention-2 in shape: a program per query tile, a loop over key tiles, base-2 exponentials, one division."""
import math

import numpy as np

BLOCK_M, BLOCK_N = 4, 8
LOG2E = math.log2(math.e)
LN2 = math.log(2.0)


def inner(q, k, v, lo, hi, causal_from, rows, qk_scale, softcap, bias, mask):
    """One tile of queries over the keys lo..hi; tiles from `causal_from` on need the triangle."""
    m_i = np.full(len(rows), -np.inf)
    l_i = np.zeros(len(rows))
    acc = np.zeros((len(rows), v.shape[-1]))
    any_i = np.zeros(len(rows), bool)
    for n in range(lo, hi, BLOCK_N):
        cols = np.arange(n, min(n + BLOCK_N, hi))
        qk = q @ k[cols].T
        if softcap is None:
            qk = qk * (qk_scale * LOG2E)
        else:
            qk = softcap * np.tanh(qk * (qk_scale / softcap)) * LOG2E
        ok = np.ones(qk.shape, bool)
        if bias is not None:
            qk = qk + bias[:, cols] * LOG2E
            ok &= bias[:, cols] != -np.inf
        if mask is not None:
            ok &= mask[:, cols]
        if n + BLOCK_N > causal_from:
            ok &= rows[:, None] >= cols[None, :]
        qk = np.where(ok, qk, -np.inf)
        m_ij = np.maximum(m_i, qk.max(1))
        safe = np.where(m_ij == -np.inf, 0.0, m_ij)
        p = np.where(ok, np.exp2(qk - safe[:, None]), 0.0)
        alpha = np.exp2(m_i - safe)
        l_i = l_i * alpha + p.sum(1)
        acc = acc * alpha[:, None] + p @ v[cols]
        m_i = m_ij
        any_i |= ok.any(1)
    return m_i, l_i, acc, any_i


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, scale=None,
    softcap=None, return_lse=False,
):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    G, N, E = value.shape[-3:]
    Z = math.prod(batch)
    q = query.reshape(Z, H, M, D).astype(np.float64)
    k = key.reshape(Z, G, N, D).astype(np.float64)
    v = value.reshape(Z, G, N, E).astype(np.float64)
    full = (*batch, H, M, N)
    if mask is not None:
        mask = np.broadcast_to(mask, full).reshape(Z, H, M, N)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, full).astype(np.float64).reshape(Z, H, M, N)
    shift = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch).reshape(Z)
    scale = 1 / math.sqrt(D) if scale is None else scale
    out = np.zeros((Z, H, M, E))
    lse = np.full((Z, H, M), -np.inf)
    with np.errstate(all="ignore"):
        for pid in range(Z * H):
            z, h = divmod(pid, H)
            g = h // (H // G)
            for start_m in range(0, M, BLOCK_M):
                tile = slice(start_m, min(start_m + BLOCK_M, M))
                rows = np.arange(tile.start, tile.stop) + shift[z]
                lo, hi, causal_from = 0, N, N + BLOCK_N
                if is_causal:
                    hi = int(max(0, min(N, rows[-1] + 1)))
                    causal_from = int(rows[0]) + 1
                m_i, l_i, acc, any_i = inner(
                    q[z, h, tile], k[z, g], v[z, g], lo, hi, causal_from, rows, scale, softcap,
                    None if attn_bias is None else attn_bias[z, h, tile],
                    None if mask is None else mask[z, h, tile],
                )
                out[z, h, tile] = np.where(any_i[:, None], acc / l_i[:, None], 0.0)
                total = np.where(l_i == 0, np.nan, (m_i + np.log2(l_i)) * LN2)
                lse[z, h, tile] = np.where(any_i, total, -np.inf)
    found = {"output": out.reshape(*batch, H, M, E).astype(query.dtype)}
    if return_lse:
        found["lse"] = lse.reshape(*batch, H, M).astype(query.dtype)
    return found
