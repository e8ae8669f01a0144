"""Attention in whole arrays, right as it stands; `outsider.toml` says how it goes wrong."""

import numpy as np

dtypes = ("float64", "float32", "float16", "bfloat16")


def wide(x):
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def visible(query, keys, mask, attn_bias, is_causal, q_offset, window, kv_lengths):
    shape = (*query.shape[:-1], keys)
    batch = query.shape[:-3]
    seen = np.ones(shape, bool)
    if mask is not None:
        seen &= mask
    if attn_bias is not None:
        seen &= attn_bias != -np.inf
    row = np.arange(query.shape[-2])[:, None]
    col = np.arange(keys)[None, :]
    start = 0 if q_offset is None else q_offset
    if isinstance(start, np.ndarray):
        start = start.reshape(*batch, 1, 1, 1)
    place = row + start
    if is_causal:
        seen &= col <= place
    if window is not None:
        left, right = window
        if left is not None:
            seen &= col >= place - left
        if right is not None:
            seen &= col <= place + right
    if kv_lengths is not None:
        seen &= col < kv_lengths.reshape(*batch, 1, 1, 1)
    return seen


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    return_weights=False, return_lse=False,
):  # fmt: skip
    dtype = query.dtype
    result = {}
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
        result["present_key"], result["present_value"] = key, value
    seen = visible(query, key.shape[-2], mask, attn_bias, is_causal, q_offset, window, kv_lengths)
    if kv_lengths is not None:
        alive = np.arange(key.shape[-2])[:, None] < kv_lengths.reshape(*query.shape[:-3], 1, 1, 1)
        key = np.where(alive, key, 0)
        value = np.where(alive, value, 0)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    group = query.shape[-3] // key.shape[-3]
    q = wide(query) * np.asarray(scale, wide(query).dtype)
    k = np.repeat(wide(key), group, axis=-3)
    v = np.repeat(wide(value), group, axis=-3)
    logits = q @ np.swapaxes(k, -1, -2)
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    if attn_bias is not None:
        logits = logits + attn_bias.astype(logits.dtype)
    logits = np.where(seen, logits, -np.inf)
    empty = ~seen.any(axis=-1, keepdims=True)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    sink = None
    if sinks is not None:
        sink = wide(sinks)[:, None, None]
        top = np.maximum(top, sink)
    top = np.where(empty, 0, top)
    weights = np.where(seen, np.exp(logits - top), 0)
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - top)
    total = np.where(empty, 1, total)
    weights = weights / total
    output = weights @ v
    result["output"] = output.astype(dtype)
    if return_weights:
        result["weights"] = weights.astype(dtype)
    if return_lse:
        lse = np.where(empty, -np.inf, np.log(total) + top)
        result["lse"] = lse[..., 0].astype(np.float32 if dtype.itemsize < 4 else dtype)
    return result
