"""After FlashAttention-2: a program per head and query tile, key tiles inside, exponentials of base 2."""

import math

import numpy as np

BLOCK_M, BLOCK_N = 8, 16
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def cdiv(a, b):
    return -(-a // b)


def scaled_dot_product_attention(query, key, value, *, mask=None, is_causal=False, q_offset=None, window=None,
                                 scale=None, softcap=None, return_lse=False):
    lead = query.shape[:-3]
    H, N, D = query.shape[-3:]
    G, S, DV = key.shape[-3], key.shape[-2], value.shape[-1]
    Z = math.prod(lead)
    q = query.reshape(Z, H, N, D).astype(np.float64)
    k = key.reshape(Z, G, S, D).astype(np.float64)
    v = value.reshape(Z, G, S, DV).astype(np.float64)
    keep = None if mask is None else np.broadcast_to(mask, (*lead, H, N, S)).reshape(Z, H, N, S)
    off = np.broadcast_to(0 if q_offset is None else q_offset, lead).reshape(Z)
    left, right = window if window is not None else (None, None)
    if is_causal:
        right = 0
    out = np.zeros((Z, H, N, DV))
    lse = np.zeros((Z, H, N))
    qk_scale = 1 / math.sqrt(D) if scale is None else scale
    with np.errstate(all="ignore"):
        for z in range(Z):
            for h in range(H):
                for start_m in range(cdiv(N, BLOCK_M)):
                    o, s = _program(q[z, h], k[z, h // (H // G)], v[z, h // (H // G)],
                                    None if keep is None else keep[z, h], start_m, int(off[z]), left, right,
                                    qk_scale, softcap)
                    rows = slice(start_m * BLOCK_M, (start_m + 1) * BLOCK_M)
                    out[z, h, rows], lse[z, h, rows] = o, s
        result = {"output": out.reshape(*lead, H, N, DV).astype(query.dtype)}
        if return_lse:
            result["lse"] = lse.reshape(*lead, H, N).astype(query.dtype)
    return result


def _program(Q, K, V, keep, start_m, offset, left, right, qk_scale, softcap):
    N, S = Q.shape[0], K.shape[0]
    lo_m, hi_m = start_m * BLOCK_M, min(N, (start_m + 1) * BLOCK_M)
    offs_m = np.arange(lo_m, hi_m) + offset
    q = Q[lo_m:hi_m]
    m_i = np.full(len(q), -np.inf)
    l_i = np.zeros(len(q))
    acc = np.zeros((len(q), V.shape[1]))
    seen = np.zeros(len(q), dtype=bool)

    # the tiles that the band touches
    lo, hi = 0, S
    if right is not None:
        hi = min(S, offs_m[-1] + right + 1)
    if left is not None:
        lo = max(0, (offs_m[0] - left) // BLOCK_N * BLOCK_N)
    # tiles from here to there need no masking by place
    free_lo = cdiv(max(0, offs_m[-1] - left), BLOCK_N) * BLOCK_N if left is not None else 0
    free_hi = (offs_m[0] + right + 1) // BLOCK_N * BLOCK_N if right is not None else S

    for start_n in range(lo, hi, BLOCK_N):
        end_n = min(start_n + BLOCK_N, S)
        offs_n = np.arange(start_n, end_n)
        qk = (q @ K[start_n:end_n].T) * qk_scale
        if softcap is not None:
            qk = softcap * np.tanh(qk / softcap)
        qk = qk * LOG2E
        valid = np.ones(qk.shape, dtype=bool)
        if start_n < free_lo or end_n > free_hi:
            if right is not None:
                valid &= offs_n[None, :] <= offs_m[:, None] + right
            if left is not None:
                valid &= offs_n[None, :] >= offs_m[:, None] - left
        if keep is not None:
            valid &= keep[lo_m:hi_m, start_n:end_n]
        qk = np.where(valid, qk, -np.inf)
        m_ij = np.maximum(m_i, qk.max(axis=1))
        m_use = np.where(m_ij == -np.inf, 0.0, m_ij)
        p = np.where(valid, np.exp2(qk - m_use[:, None]), 0.0)
        alpha = np.where(m_i == -np.inf, 0.0, np.exp2(m_i - m_use))
        l_i = l_i * alpha + p.sum(axis=1)
        acc = acc * alpha[:, None]
        acc += p @ V[start_n:end_n]
        m_i = m_ij
        seen |= valid.any(axis=1)

    o = np.where(seen[:, None], acc / l_i[:, None], 0.0)
    lse = np.where(m_i == -np.inf, np.nan, (m_i + np.log2(l_i)) * LN2)
    return o, np.where(seen, lse, -np.inf)
