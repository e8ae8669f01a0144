"""Whole arrays, heads repeated, every option, a growing cache."""
import numpy as np


def _causal(rows, cols):
    return cols <= rows


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None, sinks=None,
                                 past_key=None, past_value=None, return_weights=False, return_lse=False):
    dtype = query.dtype
    result = {}
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
        result["present_key"], result["present_value"] = key, value
    q_len, kv_len = query.shape[-2], key.shape[-2]
    group = query.shape[-3] // key.shape[-3]
    q = query.astype(np.float64)
    k = np.repeat(key.astype(np.float64), group, axis=-3)
    v = np.repeat(value.astype(np.float64), group, axis=-3)

    per_batch = lambda x: np.asarray(x)[..., None, None, None]
    rows = np.arange(q_len)[:, None]
    cols = np.arange(kv_len)[None, :]
    if q_offset is not None:
        rows = rows + per_batch(q_offset)
    visible = np.ones((q_len, kv_len), bool)
    if is_causal:
        visible = visible & _causal(rows, cols)
    if window is not None:
        left, right = window
        if left is not None:
            visible = visible & (cols >= rows - left)
        if right is not None:
            visible = visible & (cols <= rows + right)
    if kv_lengths is not None:
        exists = cols < per_batch(kv_lengths)
        visible = visible & exists
        v = np.where(np.swapaxes(exists, -1, -2), v, 0.0)
    if mask is not None:
        visible = visible & mask
    if attn_bias is not None:
        visible = visible & (attn_bias != -np.inf)

    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = (q @ np.swapaxes(k, -1, -2)) * scale
    if softcap is not None:
        logits = np.tanh(logits / softcap) * softcap
    if attn_bias is not None:
        logits = logits + attn_bias
    visible = np.broadcast_to(visible, logits.shape)
    logits = np.where(visible, logits, -np.inf)

    some = visible.any(axis=-1, keepdims=True)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = sinks.astype(np.float64)[:, None, None]
        top = np.maximum(top, sink)
    top = np.where(some, top, 0.0)
    p = np.exp(logits - top)
    total = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    p = np.where(some, p / np.where(some, total, 1.0), 0.0)
    result["output"] = (p @ v).astype(dtype)
    if return_weights:
        result["weights"] = p.astype(dtype)
    if return_lse:
        lse = np.where(some, top + np.log(total), -np.inf)
        result["lse"] = lse[..., 0].astype(dtype)
    return result
