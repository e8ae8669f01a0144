"""The layer head by head, as in the formula of the paper, with the sum over heads at the end."""

import numpy as np


def _head(q, k, v, seen, scale):
    s = np.where(seen, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    alive = seen.any(-1, keepdims=True)
    top = np.where(alive, s.max(-1, keepdims=True, initial=-np.inf), 0)
    e = np.where(seen, np.exp(s - top), 0)
    return e / np.where(alive, e.sum(-1, keepdims=True), 1) @ v


def multi_head_attention(
    query,
    key,
    value,
    *,
    w_q,
    w_k,
    w_v,
    w_o,
    b_q=None,
    b_k=None,
    b_v=None,
    b_o=None,
    mask=None,
    kv_lengths=None,
    scale=None,
):
    H, G = len(w_q), len(w_k)
    T, S = query.shape[-2], key.shape[-2]
    lead = query.shape[:-2]
    scale = np.float32(w_q.shape[-1] ** -0.5 if scale is None else scale)
    seen = np.broadcast_to(True if mask is None else mask, (*lead, H, T, S))
    if kv_lengths is not None:
        exists = np.arange(S) < np.asarray(kv_lengths)[..., None]
        seen = seen & exists[..., None, None, :]
        key = np.where(exists[..., None], key, 0)
        value = np.where(exists[..., None], value, 0)
    total = np.zeros((*lead, T, w_o.shape[-1]), query.dtype)
    for h in range(H):
        g = h // (H // G)
        q = query @ w_q[h]
        if b_q is not None:
            q = q + b_q[h]
        k = key @ w_k[g]
        if b_k is not None:
            k = k + b_k[g]
        v = value @ w_v[g]
        if b_v is not None:
            v = v + b_v[g]
        z = _head(q, k, v, seen[..., h, :, :], scale)
        total = total + z @ w_o[h]
    if b_o is not None:
        total = total + b_o
    return total.astype(query.dtype)
