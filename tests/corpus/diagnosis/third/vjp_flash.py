"""FlashAttention's backward: forward keeps output and lse, backward recomputes the weights tile by tile."""

import numpy as np

BM, BN = 4, 4


def _tile(q, k, rows, cols, scale, softcap, causal, offset, mask, bias):
    x = q[rows] @ k[cols].T * scale
    y = x if softcap is None else softcap * np.tanh(x / softcap)
    keep = np.ones(x.shape, bool)
    if bias is not None:
        b = bias[rows][:, cols]
        y = y + b
        keep &= b != -np.inf
    if mask is not None:
        keep &= mask[rows][:, cols]
    if causal:
        keep &= np.arange(rows.start, rows.stop)[:, None] + offset >= np.arange(cols.start, cols.stop)
    return x, np.where(keep, y, -np.inf), keep


def _tiles(n, size):
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


def _forward(q, k, v, tile, sink):
    m = np.full(len(q), -np.inf)
    l = np.zeros(len(q))
    o = np.zeros((len(q), v.shape[1]))
    seen = np.zeros(len(q), bool)
    for rows in _tiles(len(q), BM):
        for cols in _tiles(len(k), BN):
            _, y, keep = tile(rows, cols)
            seen[rows] |= keep.any(1)
            top = np.maximum(m[rows], y.max(1))
            base = np.where(seen[rows], top, 0)
            p = np.where(keep, np.exp(y - base[:, None]), 0)
            a = np.where(np.isneginf(m[rows]), 0, np.exp(m[rows] - base))
            l[rows] = a * l[rows] + p.sum(1)
            o[rows] = a[:, None] * o[rows] + p @ v[cols]
            m[rows] = top
    m = np.where(seen, m, 0)
    lse = m + np.log(np.where(seen, l, 1))
    out = o / np.where(seen, l, 1)[:, None]
    if sink is not None:
        joined = np.logaddexp(lse, sink)
        out = out * np.exp(lse - joined)[:, None]
        lse = joined
    return np.where(seen[:, None], out, 0), lse, seen


def scaled_dot_product_attention_vjp(
    query,
    key,
    value,
    grad_output,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    sinks=None,
):
    *lead, H, T, D = query.shape
    G, S = key.shape[-3:-1]
    scale = D**-0.5 if scale is None else float(scale)
    Q, K, V, DO = (a.astype(np.float64) for a in (query, key, value, grad_output))
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    full = (*lead, H, T, S)
    mask = None if mask is None else np.broadcast_to(mask, full)
    bias = None if attn_bias is None else np.broadcast_to(attn_bias, full)
    dB = None if bias is None else np.zeros(full)
    dS = np.zeros(H)
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, lead)
    for z in np.ndindex(*lead):
        off = int(offsets[z])
        for h in range(H):
            g = h // (H // G)
            q, k, v, do = Q[z][h], K[z][g], V[z][g], DO[z][h]
            sink = None if sinks is None else float(sinks[h])

            def tile(rows, cols):
                return _tile(
                    q,
                    k,
                    rows,
                    cols,
                    scale,
                    softcap,
                    is_causal,
                    off,
                    None if mask is None else mask[z][h],
                    None if bias is None else bias[z][h],
                )

            o, lse, seen = _forward(q, k, v, tile, sink)
            delta = np.sum(o * do, axis=1)
            for cols in _tiles(S, BN):
                dk = np.zeros_like(k[cols])
                dv = np.zeros_like(v[cols])
                first = max(0, cols.start - off) // BM * BM if is_causal else 0
                for rows in _tiles(T, BM):
                    if rows.start < first:
                        continue
                    x, y, keep = tile(rows, cols)
                    p = np.where(keep, np.exp(y - lse[rows, None]), 0)
                    dv += p.T @ do[rows]
                    dp = do[rows] @ v[cols].T
                    ds = np.where(keep, p * (dp - delta[rows, None]), 0)
                    if dB is not None:
                        dB[z][h][rows, cols] = ds
                    if softcap is not None:
                        ds = np.where(keep, ds * (1 - np.tanh(x / softcap) ** 2), 0)
                    dQ[z][h][rows] += ds @ k[cols] * scale
                    dk += ds.T @ q[rows] * scale
                dK[z][g][cols] += dk
                dV[z][g][cols] += dv
            if sinks is not None:
                dS[h] -= np.sum(np.where(seen, np.exp(sink - lse) * delta, 0))
    grads = {"query": dQ, "key": dK, "value": dV}
    grads = {n: a.astype(query.dtype) for n, a in grads.items()}
    if attn_bias is not None:
        over = tuple(range(dB.ndim - attn_bias.ndim))
        dB = dB.sum(axis=over)
        thin = tuple(a for a in range(dB.ndim) if attn_bias.shape[a] == 1)
        grads["attn_bias"] = dB.sum(axis=thin, keepdims=True).astype(attn_bias.dtype)
    if sinks is not None:
        grads["sinks"] = dS.astype(query.dtype)
    return grads
