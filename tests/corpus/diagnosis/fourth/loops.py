"""Textbook attention: one query at a time, only the keys it may see."""
import math

import numpy as np


def _row(x, shape, b, h, i):
    """Row i of a mask or bias that broadcasts to `shape`."""
    return np.broadcast_to(x, shape)[(*b, h, i)]


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, scale=None, softcap=None, sinks=None,
                                 return_weights=False, return_lse=False):
    *batch, num_heads, q_len, d_k = query.shape
    num_kv_heads, kv_len = key.shape[-3:-1]
    shape = (*batch, num_heads, q_len, kv_len)
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    scale = 1.0 / math.sqrt(d_k) if scale is None else scale
    output = np.zeros((*batch, num_heads, q_len, v.shape[-1]))
    weights = np.zeros(shape)
    lse = np.full(shape[:-1], -np.inf)
    for b in np.ndindex(*batch):
        offset = 0 if q_offset is None else int(np.asarray(q_offset)[b] if np.ndim(q_offset) else q_offset)
        for h in range(num_heads):
            g = h // (num_heads // num_kv_heads)
            for i in range(q_len):
                place = i + offset
                seen = np.ones(kv_len, bool)
                if mask is not None:
                    seen &= _row(mask, shape, b, h, i)
                if is_causal:
                    seen[max(place + 1, 0):] = False
                if window is not None:
                    left, right = window
                    if left is not None:
                        seen[:max(place - left, 0)] = False
                    if right is not None:
                        seen[max(place + right + 1, 0):] = False
                if attn_bias is not None:
                    bias = _row(attn_bias, shape, b, h, i)
                    seen &= bias != -np.inf
                js = np.flatnonzero(seen)
                if len(js) == 0:
                    continue
                logits = k[(*b, g)][js] @ q[(*b, h, i)] * scale
                if softcap is not None:
                    logits = softcap * np.tanh(logits / softcap)
                if attn_bias is not None:
                    logits = logits + bias[js]
                top = logits.max()
                if sinks is not None:
                    top = max(top, float(sinks[h])) if not np.isnan(top) else top
                p = np.exp(logits - top)
                total = p.sum()
                if sinks is not None:
                    total += np.exp(float(sinks[h]) - top)
                p = p / total
                weights[(*b, h, i)][js] = p
                lse[(*b, h, i)] = top + np.log(total)
                output[(*b, h, i)] = p @ v[(*b, g)][js]
    result = {"output": output.astype(query.dtype)}
    if return_weights:
        result["weights"] = weights.astype(query.dtype)
    if return_lse:
        result["lse"] = lse.astype(query.dtype)
    return result
