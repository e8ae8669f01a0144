"""The layer with flat matrices: one (tokens, heads * width) product each, split, attend, merge, one output product."""

import numpy as np


def _flat(w):
    heads, d_in, d = w.shape
    return w.transpose(1, 0, 2).reshape(d_in, heads * d)


def _split(x, heads):
    *lead, tokens, width = x.shape
    return np.moveaxis(x.reshape(*lead, tokens, heads, width // heads), -2, -3)


def _merge(x):
    x = np.moveaxis(x, -3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def multi_head_attention(
    query,
    key,
    value,
    *,
    w_q,
    w_k,
    w_v,
    w_o,
    b_q=None,
    b_k=None,
    b_v=None,
    b_o=None,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    sinks=None,
    past_key=None,
    past_value=None,
    return_weights=False,
):
    H, _, d_k = w_q.shape
    G = w_k.shape[0]
    d_v = w_v.shape[-1]
    same = query.shape == key.shape == value.shape and query.ndim == 3
    if same and np.array_equal(query, key) and np.array_equal(key, value):
        qkv = query @ np.concatenate([_flat(w_q), _flat(w_k), _flat(w_v)], axis=1)
        q, k, v = np.split(qkv, [H * d_k, (H + G) * d_k], axis=-1)
    else:
        q, k, v = query @ _flat(w_q), key @ _flat(w_k), value @ _flat(w_v)
    if b_q is not None:
        q = q + b_q.reshape(-1)
    if b_k is not None:
        k = k + b_k.reshape(-1)
    if b_v is not None:
        v = v + b_v.reshape(-1)
    q, k, v = _split(q, H), _split(k, G), _split(v, G)
    if past_key is not None:
        k = np.concatenate([past_key, k], axis=-2)
        v = np.concatenate([past_value, v], axis=-2)
    factor = np.float32(1 / np.sqrt(d_k) if scale is None else scale)
    kk, vv = np.repeat(k, H // G, axis=-3), np.repeat(v, H // G, axis=-3)
    logits = (q @ np.swapaxes(kk, -1, -2)) * factor
    ok = np.ones(logits.shape, bool)
    if attn_bias is not None:
        logits = logits + attn_bias
        ok = ok & (attn_bias != -np.inf)
    if mask is not None:
        ok = ok & mask
    if is_causal:
        off = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
        ok = ok & (np.arange(k.shape[-2]) <= np.arange(q.shape[-2])[:, None] + off)
    none = ~ok.any(-1, keepdims=True)
    logits = np.where(ok, logits, -np.inf)
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    top = np.where(none, 0, top)
    p = np.where(ok, np.exp(logits - top), 0)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    p = p / np.where(none, 1, total)
    out = _merge(p @ vv) @ w_o.reshape(H * d_v, -1)
    if b_o is not None:
        out = out + b_o
    answer = {"output": out.astype(query.dtype)}
    if return_weights:
        answer["weights"] = p.astype(query.dtype)
    if past_key is not None:
        answer["present_key"], answer["present_value"] = k, v
    return answer
