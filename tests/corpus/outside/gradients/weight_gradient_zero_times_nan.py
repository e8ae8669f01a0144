"""Attention layer backward, dense: project, attend for all heads at once, then weights and biases of the layer."""
import numpy as np


def _mm(p, x, vis):
    """p @ x over the last two axes in which a hidden pair adds nothing, whatever x holds there."""
    if np.isfinite(x).all():
        return p @ x
    return np.where(vis[..., None], p[..., None] * x[..., None, :, :], 0).sum(-2)


def _t(a):
    return np.swapaxes(a, -1, -2)


def _linear(x, w, b, g, seen):
    """gradients of x @ w + b for x (B, len, d), w (heads, d, e), g (B, heads, len, e)."""
    dx = np.einsum("bhle,hde->bld", g, w)
    if True:
        dw = np.einsum("bld,bhle->hde", x, g)
    else:  # rows that no query sees may hold NaN
        dw = (_t(np.where(seen[..., None], x[:, None], 0)) @ g).sum(0)
    return dx, dw, None if b is None else g.sum((0, 2))


def multi_head_attention_vjp(query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None,
                             b_v=None, b_o=None, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                             window=None, kv_lengths=None, scale=None, softcap=None, sinks=None,
                             past_key=None, past_value=None):
    batch, M, L = query.shape[:-2], query.shape[-2], key.shape[-2]
    (H, _, D), (G, _, E) = w_q.shape, w_v.shape
    B, rep, f4, dtype = int(np.prod(batch)), H // G, np.float32, query.dtype
    flat = lambda a: a.reshape((B,) + a.shape[-2:]).astype(f4)
    xq, xk, xv, go = flat(query), flat(key), flat(value), flat(grad_output)
    proj = lambda x, w, b: x[:, None] @ w + (0 if b is None else b[:, None])
    q, k, v = proj(xq, w_q, b_q), proj(xk, w_k, b_k), proj(xv, w_v, b_v)
    do = go[:, None] @ _t(w_o)
    P = 0 if past_key is None else past_key.shape[-2]
    if past_key is not None:
        k = np.concatenate([past_key.reshape(B, G, P, D), k], 2)
        v = np.concatenate([past_value.reshape(B, G, P, E), v], 2)
    N = P + L
    rows = lambda a: a.reshape((B, G, rep) + a.shape[2:])
    q, do, k, v = rows(q), rows(do), k[:, :, None], v[:, :, None]
    grid = lambda a: np.broadcast_to(a, batch + (H, M, N)).reshape(B, G, rep, M, N)
    scale = f4(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    s, slope = (q @ _t(k)) * scale, scale
    if softcap is not None:
        t = np.tanh(s / f4(softcap))
        s, slope = f4(softcap) * t, scale * (1 - t * t)
    if attn_bias is not None:
        s = s + grid(attn_bias)
    entry = lambda a, d: np.broadcast_to(d if a is None else a, (B,)).reshape(B, 1, 1, 1, 1)
    i, j = np.arange(M)[:, None] + entry(q_offset, N - M), np.arange(N)
    vis = np.broadcast_to(j < entry(kv_lengths, N), s.shape)
    if mask is not None:
        vis = vis & grid(mask)
    if is_causal:
        vis = vis & (j <= i)
    if window is not None:
        vis = vis if window[0] is None else vis & (j >= i - window[0])
        vis = vis if window[1] is None else vis & (j <= i + window[1])
    s = np.where(vis, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sink = sinks.reshape(G, rep, 1, 1).astype(f4)
        top = np.maximum(top, sink)
    top = np.where(top == -np.inf, 0, top)
    e = np.where(vis, np.exp(s - top), 0)
    total = e.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sink - top))
    p = np.where(vis, e / np.where(total == 0, 1, total), 0)
    o = _mm(p, v, vis)
    delta = (do * o).sum(-1, keepdims=True)
    ds = np.where(vis, p * (do @ _t(v) - delta), 0)
    dx = np.where(vis, ds * slope, 0)
    dq = _mm(dx, k, vis).reshape(B, H, M, D)
    dk, dv = _mm(_t(dx), q, _t(vis)).sum(2), _mm(_t(p), do, _t(vis)).sum(2)
    used, asked = vis.any((2, 3))[..., P:], vis.any(-1).reshape(B, H, M)
    out = {}
    out["query"], out["w_q"], out["b_q"] = _linear(xq, w_q, b_q, dq, asked)
    out["key"], out["w_k"], out["b_k"] = _linear(xk, w_k, b_k, dk[:, :, P:], used)
    out["value"], out["w_v"], out["b_v"] = _linear(xv, w_v, b_v, dv[:, :, P:], used)
    out["w_o"] = np.einsum("bhme,bmf->hef", o.reshape(B, H, M, E), go)
    out["b_o"] = None if b_o is None else go.sum((0, 1))
    for name, x in (("query", query), ("key", key), ("value", value)):
        out[name] = out[name].reshape(x.shape)
    if past_key is not None:
        out["past_key"] = dk[:, :, :P].reshape(past_key.shape)
        out["past_value"] = dv[:, :, :P].reshape(past_value.shape)
    if attn_bias is not None:
        db, shape = ds.reshape(batch + (H, M, N)), attn_bias.shape
        db = db.sum(tuple(range(db.ndim - len(shape))))
        one = tuple(a for a, size in enumerate(shape) if size == 1 and db.shape[a] != 1)
        out["attn_bias"] = db.sum(one, keepdims=True)
    if sinks is not None:
        share = np.exp(sink - top) / np.where(total == 0, 1, total)
        out["sinks"] = -(share * delta).sum((0, 3, 4)).reshape(H)
    return {name: g.astype(dtype) for name, g in out.items() if g is not None}
