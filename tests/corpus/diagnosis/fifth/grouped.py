"""Grouped-query attention by einsum, keys and values never repeated; float32 throughout."""

import numpy as np

NEG = np.float32(-np.inf)


def _to_groups(x, kv_heads):
    """(..., H or 1, m, n) -> (..., G or 1, r or 1, m, n)"""
    if x.ndim == 2:
        return x
    if x.shape[-3] == 1:
        return x[..., None, :, :]
    return x.reshape(*x.shape[:-3], kv_heads, x.shape[-3] // kv_heads, *x.shape[-2:])


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 scale=None, softcap=None, return_weights=False):
    *batch, n_head, t, d = query.shape
    n_kv, s = key.shape[-3], key.shape[-2]
    rep = n_head // n_kv
    q = query.reshape(*batch, n_kv, rep, t, d).astype(np.float32)
    k, v = key.astype(np.float32), value.astype(np.float32)
    factor = np.float32(1 / np.sqrt(d) if scale is None else scale)

    with np.errstate(all="ignore"):
        att = np.einsum("...grtd,...gsd->...grts", q, k, optimize=True) * factor
        if softcap is not None:
            att = np.float32(softcap) * np.tanh(att / np.float32(softcap))
        keep = np.ones((t, s), dtype=bool)
        if attn_bias is not None:
            b = _to_groups(attn_bias, n_kv)
            att = att + b.astype(np.float32)
            keep = keep & (b > NEG) if not np.isnan(b).any() else keep & ~(b == NEG)
        if mask is not None:
            keep = keep & _to_groups(mask, n_kv)
        if is_causal:
            off = 0 if q_offset is None else q_offset
            place = np.arange(t)[:, None] + np.reshape(off, (*np.shape(off), 1, 1, 1, 1))
            keep = keep & (np.arange(s) <= place)
        keep = np.broadcast_to(keep, att.shape)
        att = np.where(keep, att, NEG)
        alive = keep.any(axis=-1, keepdims=True)
        peak = np.where(alive, att.max(axis=-1, keepdims=True, initial=NEG), 0)
        w = np.where(keep, np.exp(att - peak), np.float32(0))
        z = np.where(alive, w.sum(axis=-1, keepdims=True), 1)
        w = w / z
        y = np.einsum("...grts,...gse->...grte", w, v, optimize=True)
        out = {"output": y.reshape(*batch, n_head, t, v.shape[-1]).astype(query.dtype)}
        if return_weights:
            out["weights"] = w.reshape(*batch, n_head, t, s).astype(query.dtype)
    return out
