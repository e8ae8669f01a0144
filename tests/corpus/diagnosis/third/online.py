"""Online softmax over blocks of keys; all queries at once."""

import numpy as np

BLOCK = 32


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
    kv_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    return_lse=False,
):
    *batch, H, Lq, D = query.shape
    Lk = key.shape[-2]
    rep = H // key.shape[-3]
    if scale is None:
        scale = 1.0 / np.sqrt(D)
    q = query * np.float32(1)
    shape = (*batch, H, Lq, Lk)
    if mask is not None:
        mask = np.broadcast_to(mask, shape)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, shape)
    offset = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
    pos = np.arange(Lq)[:, None] + offset

    m = np.full((*batch, H, Lq, 1), -np.inf, np.float32)
    l = np.zeros((*batch, H, Lq, 1), np.float32)
    acc = np.zeros((*batch, H, Lq, value.shape[-1]), np.float32)
    found = np.zeros((*batch, H, Lq, 1), bool)
    for start in range(0, Lk, BLOCK):
        stop = min(start + BLOCK, Lk)
        k = np.repeat(key[..., start:stop, :], rep, axis=-3)
        v = np.repeat(value[..., start:stop, :], rep, axis=-3)
        cols = np.arange(start, stop)
        s = q @ k.swapaxes(-1, -2) * np.float32(scale)
        if softcap is not None:
            s = np.tanh(s / softcap) * softcap
        ok = np.ones(s.shape, bool)
        if attn_bias is not None:
            bias = attn_bias[..., start:stop]
            s = s + bias
            ok &= bias != -np.inf
        if mask is not None:
            ok &= mask[..., start:stop]
        if is_causal:
            ok &= cols <= pos
        if window is not None:
            if window[0] is not None:
                ok &= cols >= pos - window[0]
            if window[1] is not None:
                ok &= cols <= pos + window[1]
        if kv_lengths is not None:
            live = cols < np.asarray(kv_lengths)[..., None, None, None]
            ok &= live
            v = np.where(live.swapaxes(-1, -2), v, 0)
        s = np.where(ok, s, -np.inf)
        found |= ok.any(-1, keepdims=True)
        m_new = np.maximum(m, s.max(-1, keepdims=True))
        safe = np.where(np.isneginf(m_new), 0, m_new)
        alpha = np.where(np.isneginf(m), 0, np.exp(m - safe))
        p = np.where(ok, np.exp(s - safe), 0)
        l = l * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + p @ v
        m = m_new
    if sinks is not None:
        sink = sinks[:, None, None]
        m_new = np.where(found, np.maximum(m, sink), 0)
        alpha = np.where(np.isneginf(m), 0, np.exp(m - m_new))
        l = l * alpha + np.exp(sink - m_new)
        acc = acc * alpha
        m = m_new
    out = np.where(found, acc / np.where(found, l, 1), 0).astype(query.dtype)
    if return_lse:
        lse = np.where(found, np.where(l == 0, np.nan, m + np.log(np.where(found, l, 1))), -np.inf)
        return {"output": out, "lse": lse[..., 0].astype(query.dtype)}
    return out
