"""A kernel as one would write it for a GPU: one program per (batch, head, query tile), base-2 exponentials."""

import numpy as np

BLOCK_M = 16
BLOCK_N = 16
LOG2E = 1.4426950408889634


def _program(q, k, v, bias, mask, start_m, n_ctx, causal, offset, window, qk_scale, softcap, sink):
    offs_m = start_m + np.arange(q.shape[0])
    m_i = np.full(q.shape[0], -np.inf)
    l_i = np.zeros(q.shape[0])
    seen = np.zeros(q.shape[0], bool)
    acc = np.zeros((q.shape[0], v.shape[1]))
    lo, hi = 0, n_ctx
    if causal:
        hi = min(hi, start_m + q.shape[0] + offset)
    if window is not None and window[0] is not None:
        lo = max(lo, (start_m + offset - window[0]) // BLOCK_N * BLOCK_N)
    if window is not None and window[1] is not None:
        hi = min(hi, start_m + q.shape[0] + offset + window[1])
    for start_n in range(lo, hi, BLOCK_N):
        offs_n = np.arange(start_n, min(start_n + BLOCK_N, n_ctx))
        kb = k[offs_n]
        vb = v[offs_n]
        qk = q @ kb.T
        if softcap is not None:
            qk = qk * qk_scale
            qk = softcap * np.tanh(qk / softcap) * LOG2E
        else:
            qk = qk * (qk_scale * LOG2E)
        keep = np.ones(qk.shape, bool)
        if bias is not None:
            bb = bias[start_m : start_m + q.shape[0], offs_n]
            qk = qk + bb.astype(np.float64) * LOG2E
            keep &= ~np.isneginf(bb)
        if mask is not None:
            keep &= mask[start_m : start_m + q.shape[0], offs_n]
        if causal:
            keep &= offs_m[:, None] + offset >= offs_n[None, :]
        if window is not None:
            if window[0] is not None:
                keep &= offs_n[None, :] >= offs_m[:, None] + offset - window[0]
            if window[1] is not None:
                keep &= offs_n[None, :] <= offs_m[:, None] + offset + window[1]
        qk = np.where(keep, qk, -np.inf)
        seen |= keep.any(1)
        m_ij = np.maximum(m_i, qk.max(1))
        m_use = np.where(np.isneginf(m_ij), 0.0, m_ij)
        p = np.where(keep, np.exp2(qk - m_use[:, None]), 0.0)
        alpha = np.where(np.isneginf(m_i), 0.0, np.exp2(m_i - m_use))
        l_i = l_i * alpha + p.sum(1)
        acc = acc * alpha[:, None] + p @ vb
        m_i = m_ij
    if sink is not None:
        m_ij = np.where(seen, np.maximum(m_i, sink * LOG2E), 0.0)
        alpha = np.where(np.isneginf(m_i), 0.0, np.exp2(m_i - m_ij))
        l_i = l_i * alpha + np.exp2(sink * LOG2E - m_ij)
        acc = acc * alpha[:, None]
        m_i = m_ij
    l_safe = np.where(seen, l_i, 1.0)
    lse = np.where(seen, (m_i + np.log2(l_safe)) / LOG2E, -np.inf)
    lse = np.where(seen & (l_i == 0), np.nan, lse)
    return np.where(seen[:, None], acc / l_safe[:, None], 0.0), lse


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    softcap=None,
    sinks=None,
    return_lse=False,
):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    G, N = key.shape[-3:-1]
    qk_scale = D**-0.5 if scale is None else scale
    out = np.empty((*batch, H, M, value.shape[-1]), query.dtype)
    lse = np.empty((*batch, H, M), query.dtype)
    full = (*batch, H, M, N)
    mask = None if mask is None else np.broadcast_to(mask, full)
    attn_bias = None if attn_bias is None else np.broadcast_to(attn_bias, full)
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, batch)
    for z in np.ndindex(*batch):
        for h in range(H):
            kv = h // (H // G)
            for start_m in range(0, M, BLOCK_M):
                end_m = min(start_m + BLOCK_M, M)
                o, e = _program(
                    query[z][h, start_m:end_m].astype(np.float64),
                    key[z][kv].astype(np.float64),
                    value[z][kv],
                    None if attn_bias is None else attn_bias[z][h],
                    None if mask is None else mask[z][h],
                    start_m,
                    N,
                    is_causal,
                    int(offsets[z]),
                    window,
                    qk_scale,
                    softcap,
                    None if sinks is None else float(sinks[h]),
                )
                out[z][h, start_m:end_m] = o
                lse[z][h, start_m:end_m] = e
    return {"output": out, "lse": lse} if return_lse else out
