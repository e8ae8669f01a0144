"""Online softmax over blocks of keys, all queries at once, float32 accumulators."""
import numpy as np

BLOCK = 4
F = np.float32


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 kv_lengths=None, scale=None, sinks=None, return_lse=False):
    *batch, heads, q_len, d_k = query.shape
    kv_len, d_v = value.shape[-2:]
    group = heads // key.shape[-3]
    scale = F(d_k ** -0.5 if scale is None else scale)
    q = query.astype(F) * scale
    logits_shape = (*batch, heads, q_len, kv_len)
    if mask is not None:
        mask = np.broadcast_to(mask, logits_shape)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, logits_shape)
    places = np.arange(q_len)[:, None]
    if q_offset is not None:
        places = places + np.asarray(q_offset)[..., None, None, None]

    acc = np.zeros((*batch, heads, q_len, d_v), F)
    row_max = np.full((*batch, heads, q_len, 1), -np.inf, F)
    row_sum = np.zeros_like(row_max)
    seen = np.zeros(row_max.shape, bool)
    for start in range(0, kv_len, BLOCK):
        stop = min(start + BLOCK, kv_len)
        cols = np.arange(start, stop)
        k = np.repeat(key[..., start:stop, :].astype(F), group, axis=-3)
        v = np.repeat(value[..., start:stop, :].astype(F), group, axis=-3)
        s = q @ np.swapaxes(k, -1, -2)
        visible = np.ones((1, 1), bool)
        if attn_bias is not None:
            bias = attn_bias[..., start:stop].astype(F)
            s = s + bias
            visible = visible & (bias != -np.inf)
        if mask is not None:
            visible = visible & mask[..., start:stop]
        if is_causal:
            visible = visible & (cols <= places)
        if kv_lengths is not None:
            inside = cols < np.asarray(kv_lengths)[..., None, None, None]
            visible = visible & inside
            v = np.where(np.swapaxes(inside, -1, -2), v, F(0))
        visible = np.broadcast_to(visible, s.shape)
        s = np.where(visible, s, F(-np.inf))
        seen = seen | visible.any(-1, keepdims=True)

        new_max = np.maximum(row_max, s.max(-1, keepdims=True))
        shift = np.where(np.isneginf(new_max), F(0), new_max)
        p = np.exp(s - shift)
        alpha = np.exp(row_max - shift)
        row_sum = row_sum * alpha + p.sum(-1, keepdims=True)
        acc = acc * alpha + p @ v
        row_max = new_max

    if sinks is not None:
        sink = sinks.astype(F)[:, None, None]
        new_max = np.maximum(row_max, sink)
        shift = np.where(np.isneginf(new_max), F(0), new_max)
        alpha = np.exp(row_max - shift)
        row_sum = row_sum * alpha + np.exp(sink - shift)
        acc = acc * alpha
        row_max = new_max
    row_sum = np.where(row_sum == 0, F(np.nan), row_sum)
    result = {"output": np.where(seen, acc / row_sum, F(0)).astype(query.dtype)}
    if return_lse:
        lse = np.where(seen, row_max + np.log(row_sum), F(-np.inf))
        result["lse"] = lse[..., 0].astype(query.dtype)
    return result
