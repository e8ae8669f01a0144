"""Whole arrays with einsum; query heads are folded into (groups, heads per group)."""
import numpy as np


def fold(x, groups):
    return x.reshape(*x.shape[:-3], groups, x.shape[-3] // groups, *x.shape[-2:])


def unfold(x):
    return x.reshape(*x.shape[:-4], x.shape[-4] * x.shape[-3], *x.shape[-2:])


def allowed(shape, mask, attn_bias, is_causal, q_offset, kv_lengths):
    batch, (q_len, kv_len) = shape[:-3], shape[-2:]
    keep = np.ones(shape, bool)
    if mask is not None:
        keep &= mask
    if attn_bias is not None:
        keep &= attn_bias != -np.inf
    columns = np.arange(kv_len)
    if is_causal:
        offset = np.asarray(0 if q_offset is None else q_offset)
        if offset.ndim:
            offset = offset.reshape(*batch, 1, 1, 1)
        keep &= columns <= np.arange(q_len)[:, None] + offset
    if kv_lengths is not None:
        keep &= columns < np.reshape(kv_lengths, (*batch, 1, 1, 1))
    return keep


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_weights=False, return_lse=False,
):
    out_dtype = query.dtype
    groups = key.shape[-3]
    shape = (*query.shape[:-1], key.shape[-2])
    keep = allowed(shape, mask, attn_bias, is_causal, q_offset, kv_lengths)
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    if kv_lengths is not None:
        live = np.arange(shape[-1])[:, None] < np.reshape(kv_lengths, (*shape[:-3], 1, 1, 1))
        v = np.where(live, v, 0.0)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    with np.errstate(all="ignore"):
        logits = np.einsum("...grid,...gjd->...grij", fold(q, groups), k) * scale
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        if attn_bias is not None:
            logits = logits + fold(np.broadcast_to(attn_bias, shape).astype(np.float64), groups)
        kept = fold(keep, groups)
        logits = np.where(kept, logits, -np.inf)
        top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            extra = sinks.astype(np.float64).reshape(groups, -1, 1, 1)
            top = np.maximum(top, extra)
        empty = ~kept.any(axis=-1, keepdims=True)
        top = np.where(empty, 0.0, top)
        p = np.exp(logits - top)
        p = np.where(kept, p, 0.0)
        total = p.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(extra - top)
        weights = np.where(empty, 0.0, p / total)
        lse = np.where(empty, -np.inf, np.log(total) + top)
        output = np.einsum("...grij,...gje->...grie", weights, v)
    found = {"output": unfold(output).astype(out_dtype)}
    if return_weights:
        found["weights"] = unfold(weights).astype(out_dtype)
    if return_lse:
        found["lse"] = unfold(lse)[..., 0].astype(out_dtype)
    return found
