"""Whole arrays, as one writes it in an afternoon."""

import numpy as np


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None, sinks=None,
                                 past_key=None, past_value=None, return_weights=False, return_lse=False):
    dtype = query.dtype
    present_key, present_value = key, value
    if past_key is not None:
        present_key = np.concatenate([past_key, key], axis=-2)
        present_value = np.concatenate([past_value, value], axis=-2)
    n_rep = query.shape[-3] // key.shape[-3]
    q = query.astype(np.float64)
    k = np.repeat(present_key, n_rep, axis=-3).astype(np.float64)
    v = np.repeat(present_value, n_rep, axis=-3).astype(np.float64)
    q_len, kv_len = q.shape[-2], k.shape[-2]

    with np.errstate(all="ignore"):
        if scale is None:
            scale = q.shape[-1] ** -0.5
        logits = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
        if softcap is not None:
            logits = np.tanh(logits / softcap) * softcap

        visible = np.ones(logits.shape, dtype=bool)
        if attn_bias is not None:
            logits = logits + attn_bias.astype(np.float64)
            visible &= ~np.isneginf(attn_bias)
        if mask is not None:
            visible &= mask
        rows = np.arange(q_len)[:, None]
        if q_offset is not None:
            rows = rows + np.asarray(q_offset)[..., None, None, None]
        cols = np.arange(kv_len)[None, :]
        if is_causal:
            visible &= cols <= rows
        if window is not None:
            left, right = window
            if left is not None:
                visible &= cols >= rows - left
            if right is not None:
                visible &= cols <= rows + right
        if kv_lengths is not None:
            lengths = kv_lengths[..., None, None, None]
            visible &= cols < lengths
            v = np.where(np.swapaxes(cols, 0, 1) < lengths, v, 0)

        logits = np.where(visible, logits, -np.inf)
        empty = ~visible.any(axis=-1, keepdims=True)
        top = np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            sink = sinks.astype(np.float64)[:, None, None]
            top = np.maximum(top, sink)
        top = np.where(empty, 0, top)
        probs = np.where(visible, np.exp(logits - top), 0)
        total = probs.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sink - top)
        probs = np.where(empty, 0, probs / total)
        output = np.matmul(probs, v)
        lse = np.where(empty, -np.inf, np.log(total) + top)[..., 0]

        result = {"output": output.astype(dtype)}
        if return_weights:
            result["weights"] = probs.astype(dtype)
        if return_lse:
            result["lse"] = lse.astype(dtype)
    if past_key is not None:
        result["present_key"], result["present_value"] = present_key, present_value
    return result
