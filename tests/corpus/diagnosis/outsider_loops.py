"""Attention query by query, right as it stands; `outsider.toml` says how it goes wrong."""

import math

import numpy as np

dtypes = ("float64", "float32", "float16", "bfloat16")


def scaled_dot_product_attention(
    query, key, value, *, mask=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, return_weights=False,
):  # fmt: skip
    *batch, heads, rows, width = query.shape
    kv_heads, keys = key.shape[-3:-1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    output = np.zeros((*batch, heads, rows, value.shape[-1]), query.dtype)
    weights = np.zeros((*batch, heads, rows, keys), query.dtype)
    if mask is not None:
        mask = np.broadcast_to(mask, weights.shape)
    for b in np.ndindex(*batch):
        limit = keys if kv_lengths is None else int(kv_lengths[b])
        shift = 0
        if q_offset is not None:
            shift = int(q_offset[b]) if isinstance(q_offset, np.ndarray) else q_offset
        for h in range(heads):
            g = h // (heads // kv_heads)
            for i in range(rows):
                first, last = 0, min(keys, limit)
                if is_causal:
                    last = min(last, i + shift + 1)
                if window is not None:
                    left, right = window
                    if left is not None:
                        first = max(first, i + shift - left)
                    if right is not None:
                        last = min(last, i + shift + right + 1)
                chosen = [j for j in range(first, last) if mask is None or mask[b][h, i, j]]
                if not chosen:
                    continue
                q = query[b][h, i].astype(float)
                k = key[b][g][chosen].astype(float)
                v = value[b][g][chosen].astype(float)
                logits = scale * (k @ q)
                p = np.exp(logits - logits.max())
                p = p / p.sum()
                output[b][h, i] = p @ v
                weights[b][h, i, chosen] = p
    if return_weights:
        return {"output": output, "weights": weights}
    return output
