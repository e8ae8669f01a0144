"""Backward in two kernels, one for the gradients of keys and values and one for that of the queries."""

import numpy as np

BQ, BK = 8, 8


def _lse_and_delta(q, k, v, do, see, scale):
    s = np.where(see, q @ k.T * scale, -np.inf)
    some = see.any(axis=1)
    top = np.where(some, s.max(axis=1, initial=-np.inf), 0)
    e = np.where(see, np.exp(s - top[:, None]), 0)
    total = np.where(some, e.sum(axis=1), 1)
    o = e @ v / total[:, None]
    return np.where(some, top + np.log(total), np.inf), (o * do).sum(axis=1)


def _dkdv(q, k, v, do, see, lse, delta, scale, j0):
    kb, vb = k[j0 : j0 + BK], v[j0 : j0 + BK]
    dk, dv = np.zeros(kb.shape), np.zeros(vb.shape)
    for i0 in range(0, q.shape[0], BQ):
        i1 = min(i0 + BQ, q.shape[0])
        visible = see[i0:i1, j0 : j0 + BK]
        s_t = kb @ q[i0:i1].T * scale
        p_t = np.where(visible.T, np.exp(s_t - lse[None, i0:i1]), 0)
        dv += p_t @ do[i0:i1]
        dp_t = vb @ do[i0:i1].T
        ds_t = p_t * (dp_t - delta[None, i0:i1])
        dk += ds_t @ q[i0:i1]
    return dk * scale, dv


def _dq(q, k, v, do, see, lse, delta, scale, i0):
    i1 = min(i0 + BQ, q.shape[0])
    dq = np.zeros((i1 - i0, q.shape[1]))
    for j0 in range(0, k.shape[0], BK):
        j1 = min(j0 + BK, k.shape[0])
        s = q[i0:i1] @ k[j0:j1].T * scale
        p = np.where(see[i0:i1, j0:j1], np.exp(s - lse[i0:i1, None]), 0)
        dp = do[i0:i1] @ v[j0:j1].T
        ds = p * (dp - delta[i0:i1, None])
        dq += ds @ k[j0:j1]
    return dq * scale


def scaled_dot_product_attention_vjp(
    query,
    key,
    value,
    grad_output,
    *,
    mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    kv_lengths=None,
    scale=None,
):
    lead = query.shape[:-3]
    H, T, D = query.shape[-3:]
    G, S = key.shape[-3:-1]
    c = D**-0.5 if scale is None else float(scale)
    q, k, v, do = (x.astype(np.float64) for x in (query, key, value, grad_output))
    i, j = np.arange(T)[:, None], np.arange(S)[None, :]
    place = i + np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
    see = np.ones((*lead, H, T, S), bool)
    if mask is not None:
        see &= mask
    if is_causal:
        see &= j <= place
    if window is not None:
        if window[0] is not None:
            see &= place - j <= window[0]
        if window[1] is not None:
            see &= j - place <= window[1]
    if kv_lengths is not None:
        real = np.arange(S) < np.asarray(kv_lengths)[..., None]
        see &= real[..., None, None, :]
        k = np.where(real[..., None, :, None], k, 0)
        v = np.where(real[..., None, :, None], v, 0)
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b in np.ndindex(*lead):
        for h in range(H):
            g = h * G // H
            args = q[b][h], np.where(see[b][h].any(0)[:, None], k[b][g], 0), v[b][g], do[b][h], see[b][h]
            lse, delta = _lse_and_delta(*args, c)
            for j0 in range(0, S, BK):
                part_k, part_v = _dkdv(*args, lse, delta, c, j0)
                dk[b][g][j0 : j0 + BK] += part_k
                dv[b][g][j0 : j0 + BK] += part_v
            for i0 in range(0, T, BQ):
                dq[b][h][i0 : i0 + BQ] = _dq(*args, lse, delta, c, i0)
    dt = query.dtype
    return {"query": dq.astype(dt), "key": dk.astype(dt), "value": dv.astype(dt)}
