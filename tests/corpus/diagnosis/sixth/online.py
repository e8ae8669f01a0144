"""Online softmax: keys come in blocks, with a running maximum, a running sum and a running output."""
import numpy as np

BLOCK = 8


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, return_lse=False,
):
    dtype = query.dtype
    *batch, heads, q_len, d_k = query.shape
    kv_len, d_v = value.shape[-2:]
    share = heads // key.shape[-3]
    q = query.astype(np.float64)
    if scale is None:
        scale = 1.0 / np.sqrt(d_k)
    left, right = (None, None) if window is None else window
    offset = np.asarray(0 if q_offset is None else q_offset)
    if offset.ndim:
        offset = offset[..., None, None, None]
    place = np.arange(q_len)[:, None] + offset
    full = (*batch, heads, q_len, kv_len)
    mask = None if mask is None else np.broadcast_to(mask, full)
    attn_bias = None if attn_bias is None else np.broadcast_to(attn_bias, full)

    m = np.full((*batch, heads, q_len, 1), -np.inf)
    l = np.zeros((*batch, heads, q_len, 1))
    acc = np.zeros((*batch, heads, q_len, d_v))
    seen = np.zeros((*batch, heads, q_len, 1), bool)
    with np.errstate(all="ignore"):
        for start in range(0, kv_len, BLOCK):
            stop = min(start + BLOCK, kv_len)
            k = np.repeat(key[..., start:stop, :].astype(np.float64), share, axis=-3)
            v = np.repeat(value[..., start:stop, :].astype(np.float64), share, axis=-3)
            s = scale * (q @ k.swapaxes(-1, -2))
            if softcap is not None:
                s = np.tanh(s / softcap) * softcap
            ok = np.ones(s.shape, bool)
            if attn_bias is not None:
                b = attn_bias[..., start:stop]
                s = s + b
                ok &= ~np.isneginf(b)
            if mask is not None:
                ok &= mask[..., start:stop]
            j = np.arange(start, stop)
            if is_causal:
                ok &= j <= place
            if left is not None:
                ok &= j >= place - left
            if right is not None:
                ok &= j <= place + right
            if kv_lengths is not None:
                lengths = np.asarray(kv_lengths)[..., None, None, None]
                ok &= j < lengths
                v = np.where(j[:, None] < lengths, v, 0.0)
            s = np.where(ok, s, -np.inf)
            m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
            base = np.where(np.isneginf(m_new), 0.0, m_new)
            p = np.where(ok, np.exp(s - base), 0.0)
            alpha = np.exp(m - base)
            l = l * alpha + p.sum(axis=-1, keepdims=True)
            acc = acc * alpha + p @ v
            m = m_new
            seen |= ok.any(axis=-1, keepdims=True)
        if sinks is not None:
            sink = sinks.astype(np.float64)[:, None, None]
            m_new = np.maximum(m, sink)
            base = np.where(np.isneginf(m_new), 0.0, m_new)
            alpha = np.exp(m - base)
            l = l * alpha + np.exp(sink - base)
            acc = acc * alpha
            m = m_new
        output = np.where(seen, acc / l, 0.0)
        lse = np.where(l == 0, np.nan, m + np.log(l))
        lse = np.where(seen, lse, -np.inf)
    found = {"output": output.astype(dtype)}
    if return_lse:
        found["lse"] = lse[..., 0].astype(dtype)
    return found
