"""Sliding window by loops: for each query the slice of keys it can reach, then what is left of it."""
import math

import numpy as np


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def reach(place, kv_len, is_causal, window, length):
    """First and one past the last key that a query at `place` can reach."""
    first, end = 0, kv_len
    if window is not None:
        left, right = window
        if left is not None:
            first = max(first, place - left)
        if right is not None:
            end = min(end, place + right + 1)
    if is_causal:
        end = min(end, place + 1)
    if length is not None:
        end = min(end, length)
    return first, max(first, end)


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, return_weights=False,
):
    batch = query.shape[:-3]
    heads, q_len, d_k = query.shape[-3:]
    kv_heads, kv_len, d_v = value.shape[-3:]
    factor = 1 / math.sqrt(d_k) if scale is None else scale
    mask = None if mask is None else np.broadcast_to(mask, (*batch, heads, q_len, kv_len))
    attn_bias = None if attn_bias is None else np.broadcast_to(attn_bias, (*batch, heads, q_len, kv_len))
    output = np.zeros((*batch, heads, q_len, d_v))
    weights = np.zeros((*batch, heads, q_len, kv_len))
    with np.errstate(all="ignore"):
        for b in np.ndindex(*batch):
            offset = 0 if q_offset is None else int(np.broadcast_to(q_offset, batch)[b])
            length = None if kv_lengths is None else int(kv_lengths[b])
            for h in range(heads):
                q = query[b][h].astype(np.float64)
                k = key[b][h * kv_heads // heads].astype(np.float64)
                v = value[b][h * kv_heads // heads].astype(np.float64)
                for i in range(q_len):
                    lo, hi = reach(i + offset, kv_len, is_causal, window, length)
                    hi = max(hi, lo)
                    see = np.arange(lo, hi)
                    if mask is not None:
                        see = see[mask[b][h, i, lo:hi]]
                    if attn_bias is not None:
                        see = see[attn_bias[b][h, i, see] != -np.inf]
                    if len(see) == 0:
                        continue
                    logits = factor * (k[see] @ q[i])
                    if attn_bias is not None:
                        logits = logits + attn_bias[b][h, i, see]
                    p = softmax(logits)
                    weights[b][h, i, see] = p
                    output[b][h, i] = p @ v[see]
    found = {"output": output.astype(query.dtype)}
    if return_weights:
        found["weights"] = weights.astype(query.dtype)
    return found
