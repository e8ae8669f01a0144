"""Attention layer backward, tiled: fused QKV projection for self attention, score tiles of 32 keys,
weight gradients accumulated over chunks of 128 tokens in float32."""
import numpy as np

KT, TOKENS = 32, 128


def _mm(p, x, vis):
    """p @ x in which a hidden pair adds nothing, whatever x holds there."""
    bad = ~np.isfinite(x).all(-1)
    if not bad.any():
        return p @ x
    out = p @ np.where(bad[:, None], 0, x)
    for j in np.flatnonzero(bad):
        out += np.where(vis[:, j, None], p[:, j, None] * x[j], 0)
    return out


def _weight_grad(x, g, seen):
    """sum over tokens of x^T g: x (tokens, d), g (heads, tokens, e); rows of x unseen by a head may hold NaN."""
    dw = np.zeros((g.shape[0], x.shape[1], g.shape[2]), np.float32)
    for c in range(0, x.shape[0], TOKENS):
        part = np.where(seen[:, c:c + TOKENS, None], x[c:c + TOKENS], 0)
        dw += np.swapaxes(part, 1, 2) @ g[:, c:c + TOKENS]
    return dw


def multi_head_attention_vjp(query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None,
                             b_v=None, b_o=None, mask=None, is_causal=False, q_offset=None,
                             kv_lengths=None, scale=None, softcap=None, past_key=None, past_value=None):
    batch, M, L, dtype = query.shape[:-2], query.shape[-2], key.shape[-2], query.dtype
    f = lambda a: None if a is None else a.astype(np.float32)
    (H, _, D), (G, _, E) = w_q.shape, w_v.shape
    B, rep = int(np.prod(batch)), H // G
    x_q, x_k, x_v = (f(a).reshape(B * a.shape[-2], a.shape[-1]) for a in (query, key, value))
    go = f(grad_output).reshape(B * M, grad_output.shape[-1])
    wq, wk, wv, wo, bq, bk, bv = map(f, (w_q, w_k, w_v, w_o, b_q, b_k, b_v))
    bq, bk = np.zeros((H, D), "f") if bq is None else bq, np.zeros((G, D), "f") if bk is None else bk
    bv = np.zeros((G, E), "f") if bv is None else bv
    scale = np.float32(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    # queries are projected with the scale folded into the weights
    if query is key and key is value:  # one product for the three projections
        cols = [np.moveaxis(w, 0, 1).reshape(w.shape[1], w.shape[0] * w.shape[2]) for w in (wq * scale, wk, wv)]
        qkv = x_q @ np.concatenate(cols, 1) + np.concatenate([bq.ravel(), bk.ravel(), bv.ravel()])
        cut = np.cumsum([0, H * D, G * D, G * E])
        q, k, v = (np.moveaxis(qkv[:, a:b].reshape(B * M, n, e), 1, 0)
                   for a, b, n, e in zip(cut, cut[1:], (H, G, G), (D, D, E)))
    else:
        q, k, v = x_q @ (wq * scale) + (bq * scale)[:, None], x_k @ wk + bk[:, None], x_v @ wv + bv[:, None]
    do = go @ np.swapaxes(wo, 1, 2)
    P = 0 if past_key is None else past_key.shape[-2]
    N = P + L
    kp = None if past_key is None else f(past_key).reshape(B, G, P, D)
    vp = None if past_key is None else f(past_value).reshape(B, G, P, E)
    allow = None if mask is None else np.broadcast_to(mask, batch + (H, M, N)).reshape(B, H, M, N)
    offs = np.broadcast_to(N - M if q_offset is None else q_offset, (B,))
    lens = np.minimum(np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,)), N)
    o, dq = np.zeros((H, B * M, E), "f"), np.zeros((H, B * M, D), "f")
    dk, dv = np.zeros((B, G, N, D), "f"), np.zeros((B, G, N, E), "f")
    asked, used = np.zeros((H, B * M), bool), np.zeros((B, G, N, 1), bool)
    for b, h in np.ndindex(B, H):
        g, r, own = h // rep, slice(b * M, b * M + M), slice(b * L, b * L + L)
        kb = k[g, own] if kp is None else np.concatenate([kp[b, g], k[g, own]])
        vb = v[g, own] if vp is None else np.concatenate([vp[b, g], v[g, own]])
        m, l = np.full((M, 1), -np.inf, "f"), np.zeros((M, 1), "f")
        tiles = []
        for j0 in range(0, lens[b], KT):
            j = slice(j0, min(j0 + KT, lens[b]))
            s, slope = q[h, r] @ kb[j].T, np.float32(1)
            if softcap is not None:
                t = np.tanh(s / np.float32(softcap))
                s, slope = np.float32(softcap) * t, 1 - t * t
            vis = np.ones(s.shape, bool) if allow is None else allow[b, h, :, j]
            if is_causal:
                vis = vis & (np.arange(j.start, j.stop) <= np.arange(M)[:, None] + offs[b])
            s = np.where(vis, s, -np.inf)
            new = np.maximum(m, s.max(-1, keepdims=True))
            safe = np.where(new == -np.inf, 0, new)
            p, fix = np.where(vis, np.exp(s - safe), 0), np.exp(m - safe)
            l, m = l * fix + p.sum(-1, keepdims=True), new
            o[h, r] = o[h, r] * fix + _mm(p, vb[j], vis)
            asked[h, r] = asked[h, r] | vis.any(1)
            used[b, g, j, 0] |= vis.any(0)
            tiles.append((j, s, slope, vis))
        l = np.where(l == 0, 1, l)
        o[h, r] /= l
        lse, delta = np.where(m == -np.inf, 0, m) + np.log(l), (do[h, r] * o[h, r]).sum(-1, keepdims=True)
        for j, s, slope, vis in tiles:
            p = np.where(vis, np.exp(s - lse), 0)
            ds = np.where(vis, p * (do[h, r] @ vb[j].T - delta) * slope, 0)
            dq[h, r] += _mm(ds, kb[j], vis)
            dk[b, g, j] += _mm(ds.T, q[h, r], vis.T)
            dv[b, g, j] += _mm(p.T, do[h, r], vis.T)
    dq *= scale
    new = lambda a: np.moveaxis(a[:, :, P:], 1, 0).reshape(G, B * L, a.shape[-1])
    nk, nv, used = new(dk), new(dv), new(used)[..., 0]
    out = {"query": np.einsum("hte,hde->td", dq, wq).reshape(query.shape), "w_q": _weight_grad(x_q, dq, asked),
           "key": np.einsum("hte,hde->td", nk, wk).reshape(key.shape), "w_k": _weight_grad(x_k, nk, used),
           "value": np.einsum("hte,hde->td", nv, wv).reshape(value.shape), "w_v": _weight_grad(x_v, nv, used),
           "w_o": np.swapaxes(_weight_grad(go, o, np.ones((1, B * M), bool)), 1, 2)}
    for name, bias, grad in (("b_q", b_q, dq), ("b_k", b_k, nk), ("b_v", b_v, nv)):
        if bias is not None:
            out[name] = grad.sum(1)
    if b_o is not None:
        out["b_o"] = go.sum(0)
    if past_key is not None:
        out["past_key"], out["past_value"] = (a[:, :, :P].reshape(batch + a[:, :, :P].shape[1:]) for a in (dk, dv))
    return {name: grad.astype(dtype) for name, grad in out.items()}


multi_head_attention_vjp.dtypes = ("float32", "float16", "bfloat16")
multi_head_attention_vjp.accuracy = "fused"
