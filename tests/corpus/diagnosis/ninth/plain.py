"""Gradients written out from a saved forward pass, in the width of the call; attention only."""
import numpy as np


def unbroadcast(x, shape):
    while x.ndim > len(shape):
        x = x.sum(axis=0)
    return x.sum(axis=tuple(n for n, size in enumerate(shape) if size == 1), keepdims=True).reshape(shape)


class Attention:
    """Forward and backward of one call; q [..., H, T, D], k, v [..., G, S, D]."""

    def __init__(self, q, k, v, live, bias, scale, cap, sinks):
        self.share = q.shape[-3] // k.shape[-3]
        self.q, self.scale, self.cap, self.live = q, scale, cap, live
        self.k, self.v = (np.repeat(x, self.share, axis=-3) for x in (k, v))
        x = scale * (q @ self.k.swapaxes(-1, -2))
        self.t = None
        if cap is not None:
            self.t = np.tanh(x / cap)
            x = cap * self.t
        if bias is not None:
            x = x + bias
        x = np.where(live, x, -np.inf)
        top = x.max(axis=-1, keepdims=True, initial=-np.inf)
        self.sink = None if sinks is None else sinks[:, None, None]
        if self.sink is not None:
            top = np.maximum(top, self.sink)
        top = np.where(live.any(axis=-1, keepdims=True), top, 0)
        e = np.where(live, np.exp(x - top), 0)
        z = e.sum(axis=-1, keepdims=True)
        self.p_sink = None
        if self.sink is not None:
            z = z + np.exp(self.sink - top)
            self.p_sink = np.where(live.any(axis=-1, keepdims=True), np.exp(self.sink - top) / z, 0)
        self.p = np.where(live, e / np.where(z == 0, 1, z), 0)
        self.o = self.p @ self.v

    def backward(self, do):
        dp = do @ self.v.swapaxes(-1, -2)
        delta = (do * self.o).sum(axis=-1, keepdims=True)
        ds = self.p * (dp - delta)
        dbias = ds
        if self.cap is not None:
            ds = ds * (1 - self.t**2)
        dq = ds @ self.k * self.scale
        dk = ds.swapaxes(-1, -2) @ self.q * self.scale
        dv = self.p.swapaxes(-1, -2) @ do
        dsink = None
        if self.p_sink is not None:
            dsink = -(self.p_sink * delta)[..., 0].sum(axis=-1)
            dsink = dsink.sum(axis=tuple(range(dsink.ndim - 1)))
        return dq, self.fold(dk), self.fold(dv), dbias, dsink

    def fold(self, x):
        *lead, heads, s, d = x.shape
        return x.reshape(*lead, heads // self.share, self.share, s, d).sum(axis=-3)


def live_pairs(shape, mask, attn_bias, is_causal, q_offset, window, kv_lengths):
    live = np.ones(shape, bool)
    if mask is not None:
        live = live & mask
    if attn_bias is not None:
        live = live & ~np.isneginf(attn_bias)
    start = np.asarray(0 if q_offset is None else q_offset)
    start = start[..., None, None, None] if start.ndim else start
    i, j = np.arange(shape[-2])[:, None] + start, np.arange(shape[-1])[None, :]
    if is_causal:
        live = live & (j <= i)
    if window is not None:
        left, right = window
        if left is not None:
            live = live & (j >= i - left)
        if right is not None:
            live = live & (j <= i + right)
    if kv_lengths is not None:
        live = live & (j < np.asarray(kv_lengths)[..., None, None, None])
    return live


def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None,
):
    wide = np.float64 if query.dtype == np.float64 else np.float32
    q, k, v, do = (x.astype(wide) for x in (query, key, value, grad_output))
    shape = (*q.shape[:-1], k.shape[-2])
    live = live_pairs(shape, mask, attn_bias, is_causal, q_offset, window, kv_lengths)
    share = q.shape[-3] // k.shape[-3]
    by_key = live.reshape(*live.shape[:-3], k.shape[-3], share * shape[-2], shape[-1]).any(axis=-2)[..., None]
    k, v = np.where(by_key, k, 0), np.where(by_key, v, 0)
    by_query = live.any(axis=-1, keepdims=True)
    q, do = np.where(by_query, q, 0), np.where(by_query, do, 0)
    bias = None if attn_bias is None else attn_bias.astype(wide)
    scale = wide(q.shape[-1] ** -0.5 if scale is None else scale)
    with np.errstate(all="ignore"):
        call = Attention(q, k, v, live, bias, scale, None if softcap is None else wide(softcap),
                         None if sinks is None else sinks.astype(wide))
        dq, dk, dv, dbias, dsink = call.backward(do)
    found = {"query": dq.astype(query.dtype), "key": dk.astype(key.dtype), "value": dv.astype(value.dtype)}
    if attn_bias is not None:
        found["attn_bias"] = unbroadcast(dbias, attn_bias.shape).astype(attn_bias.dtype)
    if sinks is not None:
        found["sinks"] = dsink.astype(sinks.dtype)
    return found


dtypes = ("float64", "float32")
