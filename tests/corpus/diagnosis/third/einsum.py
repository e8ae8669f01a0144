"""Grouped heads as an axis of their own; einsum does the rest."""

import numpy as np


def split(x, groups):
    return x.reshape(*x.shape[:-3], groups, x.shape[-3] // groups, *x.shape[-2:])


def per_head(x, shape, groups):
    return split(np.broadcast_to(x, shape), groups)


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    return_weights=False,
):
    *batch, H, T, D = query.shape
    G, S = key.shape[-3], key.shape[-2]
    scale = D**-0.5 if scale is None else scale
    q = split(query, G)
    s = np.einsum("...grtd,...gsd->...grts", q, key) * np.float32(scale)
    if softcap is not None:
        s = np.tanh(s / softcap) * softcap
    allowed = np.ones(s.shape, bool)
    full = (*batch, H, T, S)
    if attn_bias is not None:
        b = per_head(attn_bias, full, G)
        s = s + b
        allowed &= ~np.isneginf(b)
    if mask is not None:
        allowed &= per_head(mask, full, G)
    if is_causal:
        off = np.asarray(q_offset or 0) if np.ndim(q_offset) == 0 else np.asarray(q_offset)
        i = np.arange(T)[:, None] + off[..., None, None, None, None]
        allowed &= np.arange(S) <= i
    s = np.where(allowed, s, -np.inf)
    some = allowed.any(-1, keepdims=True)
    m = np.where(some, s.max(-1, keepdims=True, initial=-np.inf), 0)
    p = np.where(allowed, np.exp(s - m), 0)
    z = np.where(some, p.sum(-1, keepdims=True), 1)
    p = p / z
    o = np.einsum("...grts,...gsd->...grtd", p, value)
    o = o.reshape(*batch, H, T, value.shape[-1]).astype(query.dtype)
    if return_weights:
        return o, p.reshape(full).astype(query.dtype)
    return o
