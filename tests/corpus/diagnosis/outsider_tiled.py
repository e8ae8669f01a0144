"""Attention head by head over blocks of keys, right as it stands; `outsider.toml` says how it goes wrong."""

import numpy as np

BLOCK = 16
dtypes = ("float64", "float32", "float16", "bfloat16")


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, scale=None,
    softcap=None, sinks=None, return_lse=False,
):  # fmt: skip
    dtype = query.dtype
    kind = np.float64 if dtype == np.float64 else np.float32
    *batch, heads, rows, width = query.shape
    kv_heads, keys = key.shape[-3:-1]
    full = (*batch, heads, rows, keys)
    allowed = np.broadcast_to(True if mask is None else mask, full)
    bias = None if attn_bias is None else np.broadcast_to(attn_bias, full)
    scale = 1 / np.sqrt(width) if scale is None else scale
    offset = np.broadcast_to(0 if q_offset is None else q_offset, batch)
    output = np.zeros((*batch, heads, rows, value.shape[-1]), dtype)
    lse = np.zeros((*batch, heads, rows), kind)
    for entry in np.ndindex(*batch):
        for head in range(heads):
            q = query[entry][head].astype(kind) * kind(scale)
            k = key[entry][head // (heads // kv_heads)].astype(kind)
            v = value[entry][head // (heads // kv_heads)].astype(kind)
            top = np.full((rows, 1), -np.inf, kind)
            total = np.zeros((rows, 1), kind)
            acc = np.zeros((rows, v.shape[-1]), kind)
            some = np.zeros((rows, 1), bool)
            for start in range(0, keys, BLOCK):
                stop = min(start + BLOCK, keys)
                s = q @ k[start:stop].T
                if softcap is not None:
                    s = kind(softcap) * np.tanh(s / kind(softcap))
                ok = allowed[entry][head][:, start:stop].copy()
                if bias is not None:
                    b = bias[entry][head][:, start:stop]
                    ok &= b != -np.inf
                    s = s + b.astype(kind)
                if is_causal:
                    ok &= np.arange(start, stop) <= np.arange(rows)[:, None] + offset[entry]
                s = np.where(ok, s, -np.inf)
                new = np.maximum(top, s.max(axis=-1, keepdims=True))
                safe = np.where(new == -np.inf, 0, new)
                p = np.where(ok, np.exp(s - safe), 0)
                rescale = np.where(top == -np.inf, 0, np.exp(top - safe))
                total = total * rescale + p.sum(axis=-1, keepdims=True)
                acc = acc * rescale + p @ v[start:stop]
                some |= ok.any(axis=-1, keepdims=True)
                top = new
            if sinks is not None:
                new = np.maximum(top, kind(sinks[head]))
                new = np.where(some, new, 0)
                acc = acc * np.exp(top - new)
                total = total * np.exp(top - new) + np.exp(kind(sinks[head]) - new)
                top = new
            output[entry][head] = np.where(some, acc / np.where(some, total, 1), 0)
            lse[entry][head] = np.where(some, np.log(np.where(some, total, 1)) + top, -np.inf)[:, 0]
    return {"output": output, "lse": lse} if return_lse else output
