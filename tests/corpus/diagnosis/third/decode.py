"""One decoding step: append to the cache, attend with grouped heads."""

import numpy as np


def _append(cache, new):
    grown = np.empty((*new.shape[:-2], cache.shape[-2] + new.shape[-2], new.shape[-1]), new.dtype)
    grown[..., : cache.shape[-2], :] = cache
    grown[..., cache.shape[-2] :, :] = new
    return grown


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    past_key=None,
    past_value=None,
    is_causal=False,
    q_offset=None,
    kv_lengths=None,
    scale=None,
    sinks=None,
):
    step = past_key is not None
    if step:
        key, value = _append(past_key, key), _append(past_value, value)
    *B, H, T, D = query.shape
    G, S = key.shape[-3:-1]
    slot = np.arange(S)
    q = query.reshape(*B, G, H // G, T, D)
    logits = q @ key[..., None, :, :].swapaxes(-1, -2) * np.float32(D**-0.5 if scale is None else scale)
    keep = np.ones(logits.shape, bool)
    v = value
    if kv_lengths is not None:
        written = slot < np.asarray(kv_lengths)[..., None]
        keep &= written[..., None, None, None, :]
        v = np.where(written[..., None, :, None], value, 0)
    if is_causal:
        at = (
            np.arange(T)[:, None]
            + np.asarray(0 if q_offset is None else q_offset)[..., None, None, None, None]
        )
        keep &= slot <= at
    none = ~keep.any(-1, keepdims=True)
    logits = np.where(keep, logits, -np.inf)
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        s = sinks.reshape(G, H // G, 1, 1)
        top = np.maximum(top, s)
    top = np.where(none, 0, top)
    w = np.where(keep, np.exp(logits - top), 0)
    z = w.sum(-1, keepdims=True)
    if sinks is not None:
        z = z + np.exp(s - top)
    o = (w / np.where(none, 1, z)) @ v[..., None, :, :]
    o = o.reshape(*B, H, T, value.shape[-1]).astype(query.dtype)
    if step:
        return {"output": o, "present_key": key, "present_value": value}
    return o
