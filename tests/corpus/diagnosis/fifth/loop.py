"""A textbook: one head and one query at a time."""

import math

import numpy as np


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, scale=None, softcap=None, sinks=None,
                                 return_weights=False, return_lse=False):
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_heads, kv_len, d_v = key.shape[-3], key.shape[-2], value.shape[-1]
    logits_shape = (*batch, heads, q_len, kv_len)
    mask = np.broadcast_to(True if mask is None else mask, logits_shape)
    bias = np.broadcast_to(0.0 if attn_bias is None else attn_bias, logits_shape)
    offset = np.broadcast_to(0 if q_offset is None else q_offset, batch)
    if scale is None:
        scale = 1 / math.sqrt(d_k)
    output = np.zeros((*batch, heads, q_len, d_v))
    weights = np.zeros(logits_shape)
    lse = np.full((*batch, heads, q_len), -np.inf)
    with np.errstate(all="ignore"):
        for b in np.ndindex(batch):
            for h in range(heads):
                g = h // (heads // kv_heads)
                keys, values = key[b][g].astype(float), value[b][g].astype(float)
                for i in range(q_len):
                    p = i + int(offset[b])
                    row = bias[b][h, i].astype(float)
                    visible = mask[b][h, i] & (row != -np.inf)
                    first, last = 0, kv_len
                    if is_causal:
                        last = min(last, p + 1)
                    if window is not None:
                        left, right = window
                        if left is not None:
                            first = max(first, p - left)
                        if right is not None:
                            last = min(last, p + right + 1)
                    js = [j for j in range(first, last) if visible[j]]
                    if not js:
                        continue
                    x = keys[js] @ query[b][h, i].astype(float) * scale
                    if softcap is not None:
                        x = softcap * np.tanh(x / softcap)
                    x = x + row[js]
                    top = x.max()
                    if sinks is not None:
                        top = np.maximum(top, sinks[h].astype(float))
                    e = np.exp(x - top)
                    den = e.sum()
                    if sinks is not None:
                        den = den + np.exp(sinks[h].astype(float) - top)
                    p_row = e / den
                    weights[b][h, i, js] = p_row
                    output[b][h, i] = p_row @ values[js]
                    lse[b][h, i] = top + np.log(den)
        result = {"output": output.astype(query.dtype)}
        if return_weights:
            result["weights"] = weights.astype(query.dtype)
        if return_lse:
            result["lse"] = lse.astype(query.dtype)
    return result
