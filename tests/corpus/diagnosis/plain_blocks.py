"""Attention over blocks of keys with a running maximum, correct as it stands; `slips` says how people get it wrong."""

import numpy as np

BLOCK = 16
dtypes = ("float64", "float32", "float16", "bfloat16")


def attend(q, k, v, see, bias, scale, softcap, sinks):
    # q [B, H, L, D], k [B, H, S, D], v [B, H, S, E], see and bias [B, H, L, S]
    batch, heads, q_len, _ = q.shape
    kv_len = k.shape[2]
    top = np.full((batch, heads, q_len, 1), -np.inf, q.dtype)
    total = np.zeros_like(top)
    acc = np.zeros((batch, heads, q_len, v.shape[-1]), q.dtype)
    for start in range(0, kv_len, BLOCK):
        stop = min(start + BLOCK, kv_len)
        block = np.matmul(q, np.swapaxes(k[:, :, start:stop], -1, -2)) * scale
        if softcap is not None:
            block = softcap * np.tanh(block / softcap)
        if bias is not None:
            block = block + bias[..., start:stop]
        block = np.where(see[..., start:stop], block, -np.inf)
        new = np.maximum(top, block.max(axis=-1, keepdims=True))
        shift = np.where(new == -np.inf, 0, new)
        p = np.exp(block - shift)
        correction = np.exp(top - shift)
        total = total * correction + p.sum(axis=-1, keepdims=True)
        seen = see[..., start:stop].any(axis=2)[..., None]
        acc = acc * correction + np.matmul(p, np.where(seen, v[:, :, start:stop], 0))
        top = new
    some = see.any(axis=-1, keepdims=True)
    if sinks is not None:
        new = np.maximum(top, sinks[None, :, None, None])
        correction = np.exp(top - new)
        acc = acc * correction
        total = total * correction + np.exp(sinks[None, :, None, None] - new)
        top = new
    output = np.where(some, acc / np.where(some, total, 1), 0)
    lse = np.where(some, np.log(np.where(some, total, 1)) + np.where(some, top, 0), -np.inf)[..., 0]
    return output, lse


def positions(q_len, q_offset, batch):
    offset = np.zeros(batch, int) if q_offset is None else np.broadcast_to(np.ravel(q_offset), (batch,))
    return np.arange(q_len) + offset[:, None]  # [B, L]


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    window=None,
    kv_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    return_lse=False,
):
    wide = np.float64 if query.dtype == np.float64 else np.float32
    lead, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    batch = int(np.prod(lead, dtype=int))
    groups, kv_len = key.shape[-3:-1]
    q = query.astype(wide).reshape(batch, heads, q_len, d_k)
    index = np.arange(heads) // (heads // groups)
    k = key.astype(wide).reshape(batch, groups, kv_len, d_k)[:, index]
    v = value.astype(wide).reshape(batch, groups, kv_len, value.shape[-1])[:, index]
    at = positions(q_len, q_offset, batch)[:, None, :, None]
    j = np.arange(kv_len)
    see = np.ones((batch, heads, q_len, kv_len), bool)
    if is_causal:
        see &= j <= at
    if window is not None:
        before, after = window
        if before is not None:
            see &= at - j <= before
        if after is not None:
            see &= j - at <= after
    if kv_lengths is not None:
        see &= j < np.asarray(kv_lengths).reshape(batch, 1, 1, 1)
    if mask is not None:
        see &= np.broadcast_to(mask, (*lead, heads, q_len, kv_len)).reshape(see.shape)
    bias = None
    if attn_bias is not None:
        bias = np.broadcast_to(attn_bias, (*lead, heads, q_len, kv_len)).reshape(see.shape).astype(wide)
        see &= bias != -np.inf
    scale = wide(1 / np.sqrt(d_k) if scale is None else scale)
    sink = None if sinks is None else np.asarray(sinks).astype(wide)
    output, lse = attend(q, k, v, see, bias, scale, softcap, sink)
    output = output.reshape(*lead, heads, q_len, value.shape[-1]).astype(query.dtype)
    if return_lse:
        return {"output": output, "lse": lse.reshape(*lead, heads, q_len)}
    return output
