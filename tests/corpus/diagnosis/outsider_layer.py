"""The layer, with its projections side by side, right as it stands; `outsider.toml` says how it goes wrong."""

import numpy as np

dtypes = ("float64", "float32", "float16", "bfloat16")


def merged(w):
    return np.concatenate(list(w), axis=-1)


def split(x, heads):
    *batch, length, width = x.shape
    return np.moveaxis(x.reshape(*batch, length, heads, width // heads), -2, -3)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
    is_causal=False, q_offset=None, kv_lengths=None, past_key=None, past_value=None,
    return_weights=False,
):  # fmt: skip
    dtype = query.dtype
    kind = np.float64 if dtype == np.float64 else np.float32
    heads, kv_heads = w_q.shape[0], w_k.shape[0]
    wide = [x.astype(kind) for x in (query, key, value, w_q, w_k, w_v, w_o)]
    query, key, value, w_q, w_k, w_v, w_o = wide
    q, k, v = query @ merged(w_q), key @ merged(w_k), value @ merged(w_v)
    if b_q is not None:
        q = q + b_q.reshape(-1)
    if b_k is not None:
        k = k + b_k.reshape(-1)
    if b_v is not None:
        v = v + b_v.reshape(-1)
    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    result = {}
    if past_key is not None:
        k = np.concatenate([past_key.astype(kind), k], axis=-2)
        v = np.concatenate([past_value.astype(kind), v], axis=-2)
        result["present_key"], result["present_value"] = k.astype(dtype), v.astype(dtype)
    *batch, _, rows, width = q.shape
    keys = k.shape[-2]
    seen = np.broadcast_to(True if mask is None else mask, (*batch, heads, rows, keys))
    if is_causal:
        offset = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
        seen = seen & (np.arange(keys) <= np.arange(rows)[:, None] + offset)
    if kv_lengths is not None:
        used = np.arange(keys) < kv_lengths[..., None, None, None]
        seen = seen & used
        k = np.where(np.swapaxes(used, -1, -2), k, 0)
        v = np.where(np.swapaxes(used, -1, -2), v, 0)
    q = q / np.sqrt(width).astype(kind)
    logits = q @ np.swapaxes(np.repeat(k, heads // kv_heads, axis=-3), -1, -2)
    logits = np.where(seen, logits, -np.inf)
    empty = ~seen.any(axis=-1, keepdims=True)
    top = np.where(empty, 0, logits.max(axis=-1, keepdims=True, initial=-np.inf))
    weights = np.where(seen, np.exp(logits - top), 0)
    weights = weights / np.where(empty, 1, weights.sum(axis=-1, keepdims=True))
    context = weights @ np.repeat(v, heads // kv_heads, axis=-3)
    context = np.swapaxes(context, -2, -3).reshape(*batch, rows, -1)
    output = context @ w_o.reshape(-1, w_o.shape[-1])
    if b_o is not None:
        output = output + b_o
    result["output"] = output.astype(dtype)
    if return_weights:
        result["weights"] = weights.astype(dtype)
    return result
