"""Gradients as flash kernels form them: lse and delta from the way forward, weights recomputed tile by tile."""
import math

import numpy as np

TILE_Q, TILE_K = 4, 8


def tile_of(q, k, bias, ok, scale):
    s = scale * (q @ k.T)
    if bias is not None:
        s = s + bias
    return np.where(ok, s, -np.inf)


def one_head(q, k, v, g, bias, ok, scale, dbias):
    """Gradients of one query head; dbias is added to, if there is one."""
    q_len, kv_len = ok.shape
    # forward, row tile by row tile: output and lse
    out = np.zeros((q_len, v.shape[-1]))
    lse = np.zeros(q_len)
    for a in range(0, q_len, TILE_Q):
        rows = slice(a, a + TILE_Q)
        s = tile_of(q[rows], k, None if bias is None else bias[rows], ok[rows], scale)
        m = s.max(axis=1, initial=-np.inf)
        m = np.where(ok[rows].any(axis=1), m, 0.0)
        p = np.where(ok[rows], np.exp(s - m[:, None]), 0.0)
        l = p.sum(axis=1)
        l = np.where(l == 0, 1.0, l)
        out[rows] = p @ v / l[:, None]
        lse[rows] = m + np.log(l)
    # preprocess
    delta = (out * g).sum(axis=1)
    # backward: a column of tiles owns dk and dv, dq is gathered
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for c in range(0, kv_len, TILE_K):
        cols = slice(c, min(c + TILE_K, kv_len))
        dk_c, dv_c = np.zeros_like(k[cols]), np.zeros_like(v[cols])
        for a in range(0, q_len, TILE_Q):
            rows = slice(a, min(a + TILE_Q, q_len))
            live = ok[rows, cols]
            if not live.any():
                continue
            s = tile_of(q[rows], k[cols], None if bias is None else bias[rows, cols], live, scale)
            p = np.where(live, np.exp(s - lse[rows, None]), 0.0)
            dv_c += p.T @ g[rows]
            dp = g[rows] @ v[cols].T
            ds = p * (dp - delta[rows, None])
            if dbias is not None:
                dbias[rows, cols] += ds
            dq[rows] += scale * (ds @ k[cols])
            dk_c += scale * (ds.T @ q[rows])
        dk[cols] = dk_c
        dv[cols] = dv_c
    return dq, dk, dv


def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
    window=None, scale=None, past_key=None, past_value=None,
):
    past = 0
    keys, values = key, value
    if past_key is not None:
        past = past_key.shape[-2]
        keys = np.concatenate([past_key, key], axis=-2)
        values = np.concatenate([past_value, value], axis=-2)
    batch = query.shape[:-3]
    heads, q_len, d_k = query.shape[-3:]
    groups, kv_len = keys.shape[-3:-1]
    scale = 1 / math.sqrt(d_k) if scale is None else scale
    full = (*batch, heads, q_len, kv_len)
    mask = None if mask is None else np.broadcast_to(mask, full)
    bias = None if attn_bias is None else np.broadcast_to(attn_bias, full).astype(np.float64)
    dq = np.zeros(query.shape)
    dk = np.zeros(keys.shape)
    dv = np.zeros(values.shape)
    dbias = None if bias is None else np.zeros(full)
    j = np.arange(kv_len)[None, :]
    with np.errstate(all="ignore"):
        for b in np.ndindex(*batch):
            place = np.arange(q_len)[:, None] + (0 if q_offset is None else np.broadcast_to(q_offset, batch)[b])
            near = np.ones((q_len, kv_len), bool)
            if is_causal:
                near &= j <= place
            if window is not None:
                left, right = window
                if left is not None:
                    near &= place - j <= left
                if right is not None:
                    near &= j - place <= right
            for h in range(heads):
                g = h // (heads // groups)
                ok = near.copy()
                if mask is not None:
                    ok &= mask[b][h]
                if bias is not None:
                    ok &= bias[b][h] != -np.inf
                gq, gk, gv = one_head(
                    query[b][h].astype(np.float64), keys[b][g].astype(np.float64),
                    values[b][g].astype(np.float64), grad_output[b][h].astype(np.float64),
                    None if bias is None else bias[b][h], ok, scale,
                    None if bias is None else dbias[b][h],
                )
                dq[b][h] = gq
                dk[b][g] += gk
                dv[b][g] += gv
    found = {
        "query": dq.astype(query.dtype),
        "key": dk[..., past:, :].astype(key.dtype),
        "value": dv[..., past:, :].astype(value.dtype),
    }
    if attn_bias is not None:
        extra = tuple(n for n in range(-dbias.ndim, 0) if n < -attn_bias.ndim or attn_bias.shape[n] == 1)
        found["attn_bias"] = dbias.sum(axis=extra).reshape(attn_bias.shape).astype(attn_bias.dtype)
    return found
