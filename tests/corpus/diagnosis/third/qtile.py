"""Chunks of queries, each with a whole softmax, so that the score matrix never exists in full."""

import numpy as np

CHUNK = 5


def _rows(x, lo, hi):
    return x if x.shape[-2] == 1 else x[..., lo:hi, :]


def _softmax(s, visible):
    s = np.where(visible, s, -np.inf)
    has = visible.any(-1, keepdims=True)
    s = s - np.where(has, s.max(-1, keepdims=True, initial=-np.inf), 0)
    e = np.where(visible, np.exp(s), 0)
    return e / np.where(has, e.sum(-1, keepdims=True), 1)


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
    scale=None,
    softcap=None,
    return_weights=False,
):
    H, T, D = query.shape[-3:]
    S = key.shape[-2]
    repeats = H // key.shape[-3]
    kt = np.repeat(np.swapaxes(key, -1, -2), repeats, axis=-3)
    v = np.repeat(value, repeats, axis=-3)
    out = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    weights = np.zeros((*query.shape[:-1], S), query.dtype)
    base = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
    j = np.arange(S)
    for lo in range(0, T, CHUNK):
        hi = min(lo + CHUNK, T)
        s = query[..., lo:hi, :] @ kt
        s = s * np.float32(1 / np.sqrt(D) if scale is None else scale)
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        visible = np.ones(s.shape, bool)
        if attn_bias is not None:
            b = _rows(attn_bias, lo, hi)
            s = s + b
            visible = visible & (b != -np.inf)
        if mask is not None:
            visible = visible & _rows(mask, lo, hi)
        i = np.arange(lo, hi)[:, None] + base
        if is_causal:
            visible = visible & (j <= i)
        if window is not None:
            left, right = window
            if left is not None:
                visible = visible & (i - j <= left)
            if right is not None:
                visible = visible & (j - i <= right)
        p = _softmax(s, visible)
        weights[..., lo:hi, :] = p
        out[..., lo:hi, :] = p @ v
    return (out, weights) if return_weights else out
