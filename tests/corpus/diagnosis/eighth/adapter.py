"""An adapter: a library that knows (batch, length, heads, width), an additive mask and equal heads only."""
import math

import numpy as np


def library(q, k, v, additive, scale):
    """The library's own call, which is right: q [B, L, H, D], k, v [B, S, H, D], additive [B, H, L, S]."""
    s = np.einsum("blhd,bshd->bhls", q, k) * scale + additive
    hidden = np.isneginf(additive)
    s = np.where(hidden, -np.inf, s)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    p = np.where(hidden, 0, np.exp(s - top))
    total = p.sum(axis=-1, keepdims=True)
    p = np.where(hidden, 0, p / total)
    clean = np.where(np.isfinite(v), v, 0)
    out = np.einsum("bhls,bshd->blhd", p, clean)
    for sign in (np.inf, -np.inf, np.nan):
        wrong = np.isnan(v) if np.isnan(sign) else v == sign
        if wrong.any():
            met = np.einsum("bhls,bshd->blhd", (p > 0).astype(q.dtype), wrong.astype(q.dtype)) > 0
            out = np.where(met, out + sign, out)
    return out


def additive_mask(shape, wide, mask, attn_bias, is_causal, offset, lengths):
    """Everything that hides, as one additive mask."""
    *lead, heads, length, source = shape
    total = np.zeros(shape, wide)
    if attn_bias is not None:
        total = total + attn_bias.astype(wide)
    if mask is not None:
        total = np.where(np.broadcast_to(mask, shape), total, -np.inf)
    if is_causal:
        place = np.arange(length)[:, None] + offset
        total = np.where(np.arange(source)[None, :] <= place, total, -np.inf)
    if lengths is not None:
        total = np.where(np.arange(source) < np.asarray(lengths)[..., None, None, None], total, -np.inf)
    return total


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None,
):
    dtype = query.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    lead = query.shape[:-3]
    heads, length, width = query.shape[-3:]
    source, v_width = value.shape[-2:]
    n = math.prod(lead)
    share = heads // key.shape[-3]
    offset = 0 if q_offset is None else np.asarray(q_offset)
    if np.ndim(offset):
        offset = offset[..., None, None, None]
    additive = additive_mask(
        (*lead, heads, length, source), wide, mask, attn_bias, is_causal, offset, kv_lengths
    )
    seen = ~np.isneginf(additive).all(axis=-2)
    key = np.where(seen[..., None], np.repeat(key, share, axis=-3), 0)
    value = np.repeat(value, share, axis=-3)
    q, k, v = (np.moveaxis(x.reshape(n, heads, *x.shape[-2:]), 1, 2).astype(wide) for x in (query, key, value))
    scale = 1 / math.sqrt(width) if scale is None else scale
    with np.errstate(all="ignore"):
        out = library(q, k, v, additive.reshape(n, heads, length, source), wide(scale))
    return np.moveaxis(out, 2, 1).reshape(*lead, heads, length, v_width).astype(dtype)


dtypes = ("float64", "float32", "float16", "bfloat16")
