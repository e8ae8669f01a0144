"""Gradients of the layer by the chain rule, einsum by einsum."""
import numpy as np


def shrink(x, like):
    """Sums what a broadcast has spread."""
    x = x.sum(axis=tuple(range(x.ndim - like.ndim))) if x.ndim > like.ndim else x
    axes = tuple(n for n in range(like.ndim) if like.shape[n] == 1)
    return x.sum(axis=axes, keepdims=True) if axes else x


def tokens(x, keep):
    """x [..., L, D] and [N, L, D]."""
    return x.reshape(-1, *x.shape[-keep:]) if x.size else np.zeros(
        (int(np.prod(x.shape[:-keep])), *x.shape[-keep:]), x.dtype)


def multi_head_attention_vjp(
    query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
    attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None,
):
    f = np.float64
    xq, xk, xv, dy = (x.astype(f) for x in (query, key, value, grad_output))
    wq, wk, wv, wo = (x.astype(f) for x in (w_q, w_k, w_v, w_o))
    heads, groups = w_q.shape[0], w_k.shape[0]
    share = heads // groups
    scale = w_q.shape[2] ** -0.5 if scale is None else scale
    if kv_lengths is not None:
        alive = np.arange(xk.shape[-2]) < np.asarray(kv_lengths)[..., None]
        xk, xv = np.where(alive[..., None], xk, 0), np.where(alive[..., None], xv, 0)
    with np.errstate(all="ignore"):
        q = np.einsum("...td,hdk->...htk", xq, wq) + (0 if b_q is None else b_q.astype(f)[:, None])
        k = np.einsum("...sd,hdk->...hsk", xk, wk) + (0 if b_k is None else b_k.astype(f)[:, None])
        v = np.einsum("...sd,hdk->...hsk", xv, wv) + (0 if b_v is None else b_v.astype(f)[:, None])
        kr, vr = np.repeat(k, share, axis=-3), np.repeat(v, share, axis=-3)
        x = scale * np.einsum("...tk,...sk->...ts", q, kr)
        live = np.ones(x.shape, bool)
        if attn_bias is not None:
            x = x + attn_bias.astype(f)
            live = live & ~np.isneginf(attn_bias)
        if mask is not None:
            live = live & mask
        at = np.asarray(0 if q_offset is None else q_offset)
        at = at[..., None, None, None] if at.ndim else at
        t, s = x.shape[-2:]
        if is_causal:
            live = live & (np.arange(s)[None] <= np.arange(t)[:, None] + at)
        if kv_lengths is not None:
            live = live & (np.arange(s) < np.asarray(kv_lengths)[..., None, None, None])
        top = np.max(np.where(live, x, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
        e = np.where(live, np.exp(x - np.where(np.isneginf(top), 0, top)), 0)
        z = e.sum(axis=-1, keepdims=True)
        p = e / np.where(z == 0, 1, z)
        o = p @ vr
        # backwards
        do = np.einsum("...tm,hkm->...htk", dy, wo)
        dvr = np.einsum("...ts,...tk->...sk", p, do)
        dp = np.einsum("...tk,...sk->...ts", do, vr)
        ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
        dq = scale * np.einsum("...ts,...sk->...tk", ds, kr)
        dkr = scale * np.einsum("...ts,...tk->...sk", ds, q)
        dk = dkr.reshape(*dkr.shape[:-3], groups, share, *dkr.shape[-2:]).sum(axis=-3)
        dv = dvr.reshape(*dvr.shape[:-3], groups, share, *dvr.shape[-2:]).sum(axis=-3)
        found = {
            "query": np.einsum("...htk,hdk->...td", dq, wq),
            "key": np.einsum("...hsk,hdk->...sd", dk, wk),
            "value": np.einsum("...hsk,hdk->...sd", dv, wv),
            "w_q": np.einsum("ntd,nhtk->hdk", tokens(xq, 2), tokens(dq, 3)),
            "w_k": np.einsum("nsd,nhsk->hdk", tokens(xk, 2), tokens(dk, 3)),
            "w_v": np.einsum("nsd,nhsk->hdk", tokens(xv, 2), tokens(dv, 3)),
            "w_o": np.einsum("nhtk,ntm->hkm", tokens(o, 3), tokens(dy, 2)),
        }
        if b_q is not None:
            found["b_q"] = tokens(dq, 3).sum(axis=(0, 2))
        if b_k is not None:
            found["b_k"] = tokens(dk, 3).sum(axis=(0, 2))
        if b_v is not None:
            found["b_v"] = tokens(dv, 3).sum(axis=(0, 2))
        if b_o is not None:
            found["b_o"] = tokens(dy, 2).sum(axis=(0, 1))
        if attn_bias is not None:
            found["attn_bias"] = shrink(ds, attn_bias)
    given = dict(query=query, key=key, value=value, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k,
                 b_v=b_v, b_o=b_o, attn_bias=attn_bias)
    return {name: array.astype(given[name].dtype) for name, array in found.items()}


dtypes = ("float64", "float32")
