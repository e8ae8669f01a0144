"""Textbook attention, one matrix at a time."""

import numpy as np


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
    past_key=None,
    past_value=None,
    return_weights=False,
    return_lse=False,
):
    cached = past_key is not None
    if cached:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
    heads, n_q, width = query.shape[-3:]
    kv_heads, n_k = key.shape[-3:-1]
    group = heads // kv_heads
    k = np.repeat(key, group, axis=-3)
    v = np.repeat(value, group, axis=-3)

    visible = np.ones((*query.shape[:-1], n_k), dtype=bool)
    rows = np.arange(n_q)[:, None]
    columns = np.arange(n_k)[None, :]
    shift = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
    place = rows + shift
    if mask is not None:
        visible = visible & mask
    if is_causal:
        visible = visible & (columns <= place)
    if window is not None:
        left, right = window
        if left is not None:
            visible = visible & (columns >= place - left)
        if right is not None:
            visible = visible & (columns <= place + right)
    if kv_lengths is not None:
        exists = columns < np.asarray(kv_lengths)[..., None, None, None]
        visible = visible & exists
        v = np.where(np.swapaxes(exists, -1, -2), v, 0)
    if attn_bias is not None:
        visible = visible & (attn_bias != -np.inf)

    factor = query.dtype.type(1 / np.sqrt(width) if scale is None else scale)
    x = (query @ np.swapaxes(k, -1, -2)) * factor
    if softcap is not None:
        x = softcap * np.tanh(x / softcap)
    if attn_bias is not None:
        x = x + attn_bias
    x = np.where(visible, x, -np.inf)
    empty = ~visible.any(axis=-1, keepdims=True)
    top = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = sinks[:, None, None]
        top = np.maximum(top, sink)
    top = np.where(empty, 0, top)
    e = np.where(visible, np.exp(x - top), 0)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    total = np.where(empty, 1, total)
    weights = e / total
    answer = {"output": (weights @ v).astype(query.dtype)}
    if return_weights:
        answer["weights"] = weights.astype(query.dtype)
    if return_lse:
        lse = np.where(empty, -np.inf, np.log(total) + top)
        answer["lse"] = lse[..., 0].astype(query.dtype)
    if cached:
        answer["present_key"], answer["present_value"] = key, value
    return answer
