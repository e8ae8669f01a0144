"""Online softmax: all queries at once, keys in blocks of 16, running maximum, sum and accumulator."""

import numpy as np

BLOCK = 16


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 kv_lengths=None, scale=None, softcap=None, sinks=None, return_lse=False):
    *batch, H, n, d = query.shape
    G, S, dv = key.shape[-3], key.shape[-2], value.shape[-1]
    sm_scale = 1.0 / np.sqrt(d) if scale is None else scale
    kv_head = np.arange(H) // (H // G)
    q = query.astype(np.float64) * sm_scale
    full = (*batch, H, n, S)
    mask = None if mask is None else np.broadcast_to(mask, full)
    bias = None if attn_bias is None else np.broadcast_to(attn_bias, full)
    place = np.arange(n)[:, None]
    if q_offset is not None:
        place = place + np.asarray(q_offset)[..., None, None, None]

    m_i = np.full((*batch, H, n), -np.inf)
    l_i = np.zeros((*batch, H, n))
    acc = np.zeros((*batch, H, n, dv))
    seen = np.zeros((*batch, H, n), dtype=bool)
    with np.errstate(all="ignore"):
        for start in range(0, S, BLOCK):
            stop = min(start + BLOCK, S)
            cols = np.arange(start, stop)
            k = key[..., start:stop, :][..., kv_head, :, :].astype(np.float64)
            v = value[..., start:stop, :][..., kv_head, :, :].astype(np.float64)
            s = q @ np.swapaxes(k, -1, -2)
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            ok = np.ones(s.shape, dtype=bool)
            if bias is not None:
                b = bias[..., start:stop]
                s = s + b
                ok &= b != -np.inf
            if mask is not None:
                ok &= mask[..., start:stop]
            if is_causal:
                ok &= place >= cols
            if kv_lengths is not None:
                exists = cols < kv_lengths[..., None]
                ok &= exists[..., None, None, :]
                v = np.where(exists[..., None, :, None], v, 0.0)
            s = np.where(ok, s, -np.inf)
            m_new = np.maximum(m_i, s.max(axis=-1))
            m_safe = np.where(m_new == -np.inf, 0.0, m_new)
            p = np.where(ok, np.exp(s - m_safe[..., None]), 0.0)
            alpha = np.where(m_i == -np.inf, 0.0, np.exp(m_i - m_safe))
            l_i = l_i * alpha + p.sum(axis=-1)
            acc = acc * alpha[..., None] + p @ v
            m_i = m_new
            seen |= ok.any(axis=-1)
        if sinks is not None:
            sink = sinks.astype(np.float64)[:, None]
            m_new = np.maximum(m_i, sink)
            m_safe = np.where(m_new == -np.inf, 0.0, m_new)
            alpha = np.where(m_i == -np.inf, 0.0, np.exp(m_i - m_safe))
            l_i = l_i * alpha + np.exp(sink - m_safe)
            acc = acc * alpha[..., None]
            m_i = m_new
        out = np.where(seen[..., None], acc / l_i[..., None], 0.0)
        lse = np.where(m_i == -np.inf, np.nan, m_i + np.log(l_i))
        lse = np.where(seen, lse, -np.inf)
        result = {"output": out.astype(query.dtype)}
        if return_lse:
            result["lse"] = lse.astype(query.dtype)
    return result
