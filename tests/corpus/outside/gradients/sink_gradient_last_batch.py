"""Triton-like backward in two kernels (dk/dv by key tile, dq by query tile), scores in base 2, 16-bit storage."""
import numpy as np

QT, KT = 16, 128
LOG2E = np.float32(1.4426950408889634)


def _mm(p, x, vis):
    """p @ x in which a hidden pair adds nothing, whatever x holds there."""
    bad = ~np.isfinite(x).all(-1)
    if not bad.any():
        return p @ x
    out = p @ np.where(bad[:, None], 0, x)
    for j in np.flatnonzero(bad):
        out += np.where(vis[:, j, None], p[:, j, None] * x[j], 0)
    return out


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None,
                                     is_causal=False, q_offset=None, kv_lengths=None,
                                     scale=None, softcap=None, sinks=None):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    (G, N), E = key.shape[-3:-1], value.shape[-1]
    B, rep, st, f4 = int(np.prod(batch)), H // G, query.dtype, np.float32
    q, do = query.reshape(B, H, M, D).astype(f4), grad_output.reshape(B, H, M, E).astype(f4)
    k, v = key.reshape(B, G, N, D).astype(f4), value.reshape(B, G, N, E).astype(f4)
    scale = f4(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    grid = lambda a: np.broadcast_to(a, batch + (H, M, N)).reshape(B, H, M, N)
    allow = None if mask is None else grid(mask)
    bias = None if attn_bias is None else grid(attn_bias)
    offs = np.broadcast_to(N - M if q_offset is None else q_offset, (B,))
    lens = np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,))

    def score2(b, h, i, j):
        """base-2 scores of a tile, what is visible, and the slope of the softcap."""
        x = q[b, h, i] @ k[b, h // rep, j].T
        x = x * scale
        slope = f4(1)
        if softcap is not None:
            t = np.tanh(x / f4(softcap))
            x, slope = f4(softcap) * t, 1 - t * t
        if bias is not None:
            x = x + bias[b, h, i, j].astype(f4)
        vis = np.broadcast_to(np.arange(N)[j] < lens[b], x.shape)
        if is_causal:
            vis = vis & (np.arange(N)[j] <= np.arange(M)[i, None] + offs[b])
        if allow is not None:
            vis = vis & allow[b, h, i, j]
        return np.where(vis, x * LOG2E, -np.inf), vis, slope

    def tile_grad(b, h, i, j, lse, delta):
        s, vis, slope = score2(b, h, i, j)
        p = np.where(vis, np.exp2(s - lse[i]), 0)
        ds = np.where(vis, p * (do[b, h, i] @ v[b, h // rep, j].T - delta[i]), 0)
        return p, vis, ds, np.where(vis, ds * slope, 0)

    dq = np.zeros((B, H, M, D), f4)
    dk, dv = np.zeros((B, G, N, D), f4), np.zeros((B, G, N, E), f4)
    db = None if bias is None else np.zeros((B, H, M, N), f4)
    dsink = np.zeros(H, f4)
    qtiles = [slice(i, min(i + QT, M)) for i in range(0, M, QT)]
    for b, h in np.ndindex(B, H):
        n, g = min(N, int(lens[b])), h // rep
        ktiles = [slice(j, min(j + KT, n)) for j in range(0, n, KT)]
        lse, delta = np.zeros((M, 1), f4), np.zeros((M, 1), f4)
        for i in qtiles:  # forward again: base-2 lse and delta
            rows = i.stop - i.start
            m, l, o = np.full((rows, 1), -np.inf, f4), np.zeros((rows, 1), f4), np.zeros((rows, E), f4)
            if sinks is not None:
                m[:], l[:] = f4(sinks[h]) * LOG2E, 1
            for j in ktiles:
                s, vis, _ = score2(b, h, i, j)
                new = np.maximum(m, s.max(-1, keepdims=True))
                safe = np.where(new == -np.inf, 0, new)
                p, r = np.where(vis, np.exp2(s - safe), 0), np.exp2(m - safe)
                l, m = l * r + p.sum(-1, keepdims=True), new
                o = o * r + _mm(p, v[b, g, j], vis)
            one = np.where(l == 0, 1, l)
            lse[i] = np.where(m == -np.inf, 0, m + np.log2(one))
            delta[i] = (do[b, h, i] * (o / one)).sum(-1, keepdims=True)
        if sinks is not None:
            dsink[h] = -(np.exp2(f4(sinks[h]) * LOG2E - lse) * delta).sum()
        for j in ktiles:  # kernel 1: dk, dv
            ak, av = np.zeros((j.stop - j.start, D), f4), np.zeros((j.stop - j.start, E), f4)
            for i in qtiles:
                p, vis, _, ds = tile_grad(b, h, i, j, lse, delta)
                av += _mm(p.T.astype(st).astype(f4), do[b, h, i], vis.T)
                ak += _mm(ds.T, q[b, h, i], vis.T)
            dk[b, g, j] += ak * scale
            dv[b, g, j] += av
        for i in qtiles:  # kernel 2: dq and the bias
            for j in ktiles:
                _, vis, raw, ds = tile_grad(b, h, i, j, lse, delta)
                dq[b, h, i] += _mm(ds, k[b, g, j], vis) * scale
                if db is not None:
                    db[b, h, i, j] = raw
    out = {"query": dq.reshape(query.shape), "key": dk.reshape(key.shape), "value": dv.reshape(value.shape)}
    if db is not None:
        db, shape = db.reshape(batch + (H, M, N)), attn_bias.shape
        db = db.sum(tuple(range(db.ndim - len(shape))))
        out["attn_bias"] = db.sum(tuple(a for a, e in enumerate(shape) if e == 1 and db.shape[a] != 1), keepdims=True)
    if sinks is not None:
        out["sinks"] = dsink
    return {name: grad.astype(st) for name, grad in out.items()}


scaled_dot_product_attention_vjp.dtypes = ("float32", "float16", "bfloat16")
scaled_dot_product_attention_vjp.accuracy = "fused"
