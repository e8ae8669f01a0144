"""The suite's call on a library of another convention.

The library: (batch, length, heads, width), True in a mask hides, a float mask is added, causal is bottom-right,
softmax_lse comes as (batch, length, heads), a key padding mask of its own, window sizes with -1 for open.
"""
import numpy as np


def library_attention(q, k, v, key_padding_mask=None, attn_mask=None, softmax_scale=None, causal=False,
                      window_size=(-1, -1), logits_soft_cap=0.0, need_weights=False):
    B, S, H, D = q.shape
    T, KH = k.shape[1:3]
    k = np.repeat(k, H // KH, axis=2)
    v = np.repeat(v, H // KH, axis=2)
    softmax_scale = D ** -0.5 if softmax_scale is None else softmax_scale
    s = np.einsum("bshd,bthd->bhst", q, k) * softmax_scale
    if logits_soft_cap > 0.0:
        s = np.tanh(s / logits_soft_cap) * logits_soft_cap
    drop = np.zeros((1, 1, S, T), bool)
    if attn_mask is not None:
        if attn_mask.dtype == bool:
            drop = drop | attn_mask
        else:
            s = s + attn_mask
            drop = drop | (attn_mask == -np.inf)
    if key_padding_mask is not None:
        drop = drop | key_padding_mask[:, None, None, :]
        v = np.where(key_padding_mask[:, :, None, None], 0, v)
    diagonal = np.arange(S)[:, None] + (T - S)
    if causal:
        drop = drop | (np.arange(T) > diagonal)
    if window_size[0] >= 0:
        drop = drop | (np.arange(T) < diagonal - window_size[0])
    if window_size[1] >= 0:
        drop = drop | (np.arange(T) > diagonal + window_size[1])
    drop = np.broadcast_to(drop, s.shape)
    s = np.where(drop, -np.inf, s)
    dead = drop.all(-1, keepdims=True)
    top = np.where(dead, 0, s.max(-1, keepdims=True, initial=-np.inf))
    e = np.exp(s - top)
    z = np.where(dead, 1, e.sum(-1, keepdims=True))
    p = e / z
    out = np.einsum("bhst,bthd->bshd", p, v)
    lse = np.where(dead, -np.inf, top + np.log(z))[..., 0]
    return out, lse.transpose(0, 2, 1), p if need_weights else None


def _flat(x, lead, rest):
    return np.broadcast_to(x, (*lead, *x.shape[-rest:])).reshape(int(np.prod(lead)), *x.shape[-rest:])


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None,
                                 return_weights=False, return_lse=False):
    lead = query.shape[:-3]
    S, T = query.shape[-2], key.shape[-2]
    q, k, v = (_flat(x, lead, 3).astype(np.float64).transpose(0, 2, 1, 3) for x in (query, key, value))
    attn_mask = None
    if mask is not None:
        attn_mask = ~(mask if mask.ndim == 2 else _flat(mask, lead, 3))
    if attn_bias is not None:
        added = (attn_bias if attn_bias.ndim == 2 else _flat(attn_bias, lead, 3)).astype(np.float64)
        if attn_mask is not None:
            added = np.where(attn_mask, -np.inf, added)
        attn_mask = added
    padding = None
    if kv_lengths is not None:
        padding = np.arange(T) >= kv_lengths.reshape(-1, 1)
    window_size = (-1, -1) if window is None else tuple(-1 if w is None else w for w in window)
    if is_causal or window is not None:
        offset = np.unique(0 if q_offset is None else q_offset)
        if len(offset) != 1 or offset[0] != T - S:  # the library's diagonal is another one: spell it out
            offset = np.broadcast_to(0 if q_offset is None else q_offset, lead).reshape(-1, 1, 1, 1)
            place = np.arange(S)[:, None] + offset
            j = np.arange(T)
            hide = np.zeros((1, 1, S, T), bool)
            if is_causal:
                hide = hide | (j > place)
            if window_size[0] >= 0:
                hide = hide | (j < place - window_size[0])
            if window_size[1] >= 0:
                hide = hide | (j > place + window_size[1])
            if attn_mask is None:
                attn_mask = hide
            elif attn_mask.dtype == bool:
                attn_mask = attn_mask | hide
            else:
                attn_mask = np.where(hide, -np.inf, attn_mask)
            is_causal, window_size = False, (-1, -1)
    out, lse, p = library_attention(
        q, k, v, key_padding_mask=padding, attn_mask=attn_mask, softmax_scale=scale, causal=is_causal,
        window_size=window_size, logits_soft_cap=softcap or 0.0, need_weights=return_weights,
    )
    result = {"output": out.transpose(0, 2, 1, 3).reshape(*query.shape[:-1], -1).astype(query.dtype)
              if out.size else np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)}
    if return_weights:
        result["weights"] = p.reshape(*lead, *p.shape[1:]).astype(query.dtype)
    if return_lse:
        result["lse"] = lse.transpose(0, 2, 1).reshape(query.shape[:-1]).astype(query.dtype)
    return result
