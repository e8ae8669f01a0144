"""A forward kernel in float32: one program per head and query tile, key tiles in a loop, state (m, l, acc)."""
import numpy as np

BM, BN = 16, 16
F = np.float32
LOG2E = F(1.4426950408889634)


def rows_of(batch, x, n):
    return np.broadcast_to(np.asarray(x), batch).reshape(n)


def program(q, k, v, bias, mask, first, limit, left, right, causal, scale, cap, sink):
    """q [BM, d], k [n, d], v [n, e], all float32; bias, mask [BM, n] or None; returns o [BM, e], lse [BM]."""
    n, tile = len(k), len(q)
    pos = first + np.arange(tile)
    m = np.full(tile, -np.inf, F)
    l = np.zeros(tile, F)
    acc = np.zeros((tile, v.shape[1]), F)
    seen = np.zeros(tile, bool)
    lo, hi = 0, min(n, limit)
    if causal:
        hi = min(hi, int(pos[-1]) + 1)
    if right is not None:
        hi = min(hi, int(pos[-1]) + right + 1)
    if left is not None:
        lo = max(0, int(pos[0]) - left) // BN * BN
    if sink is not None:
        m = np.full(tile, sink, F)
        l = np.ones(tile, F)
    for start in range(lo, max(hi, lo), BN):
        stop = min(start + BN, hi)
        cols = np.arange(start, stop)
        s = (q @ k[start:stop].T) * scale
        if cap is not None:
            s = cap * np.tanh(s / cap)
        live = np.ones(s.shape, bool)
        if bias is not None:
            s = s + bias[:, start:stop]
            live &= ~np.isneginf(bias[:, start:stop])
        if mask is not None:
            live &= mask[:, start:stop]
        if causal:
            live &= cols[None, :] <= pos[:, None]
        if left is not None:
            live &= cols[None, :] >= pos[:, None] - left
        if right is not None:
            live &= cols[None, :] <= pos[:, None] + right
        s = np.where(live, s, F(-np.inf))
        m_new = np.maximum(m, s.max(axis=1, initial=-np.inf))
        ref = np.where(m_new == -np.inf, F(0), m_new)
        p = np.where(live, np.exp2((s - ref[:, None]) * LOG2E), F(0))
        corr = np.exp2((m - ref) * LOG2E)
        l = l * corr + p.sum(axis=1)
        vt = np.where(live.any(axis=0)[:, None], v[start:stop], F(0))
        acc = acc * corr[:, None] + p @ vt
        bad = ~np.isfinite(vt)
        if bad.any():
            acc = np.where(np.isnan(acc) & ~((live[:, :, None] & bad[None]).any(axis=1)),
                           p @ np.where(bad, F(0), vt), acc)
        m = m_new
        seen |= live.any(axis=1)
    o = np.where(seen[:, None], acc / l[:, None], F(0))
    lse = np.where(seen, m + np.log(l), F(-np.inf))
    return o, lse


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, return_lse=False,
):
    batch, (H, M, D), (G, N, E) = query.shape[:-3], query.shape[-3:], value.shape[-3:]
    Z = int(np.prod(batch))
    q, k, v = (x.reshape(Z, *x.shape[-3:]).astype(F) for x in (query, key, value))
    full = (*batch, H, M, N)
    mask = None if mask is None else np.broadcast_to(mask, full).reshape(Z, H, M, N)
    bias = None if attn_bias is None else np.broadcast_to(attn_bias, full).reshape(Z, H, M, N).astype(F)
    offset = rows_of(batch, 0 if q_offset is None else q_offset, Z)
    lengths = rows_of(batch, N if kv_lengths is None else kv_lengths, Z)
    left, right = (None, None) if window is None else window
    scale = F(D**-0.5 if scale is None else scale)
    cap = None if softcap is None else F(softcap)
    o = np.zeros((Z, H, M, E), F)
    lse = np.full((Z, H, M), -np.inf, F)
    with np.errstate(all="ignore"):
        for z in range(Z):
            for h in range(H):
                g = h // (H // G)
                for a in range(0, M, BM):
                    b = min(a + BM, M)
                    o[z, h, a:b], lse[z, h, a:b] = program(
                        q[z, h, a:b], k[z, g], v[z, g],
                        None if bias is None else bias[z, h, a:b],
                        None if mask is None else mask[z, h, a:b],
                        a + int(offset[z]), int(lengths[z]), left, right, is_causal, scale, cap,
                        None if sinks is None else F(sinks[h]),
                    )
    found = {"output": o.reshape(*batch, H, M, E).astype(query.dtype)}
    if return_lse:
        found["lse"] = lse.reshape(*batch, H, M)
    return found


dtypes = ("float32", "float16", "bfloat16")
