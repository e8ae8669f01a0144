"""keras.ops-style adapter: the compute dtype is float32, short contexts go through a one-shot
softmax, long ones through column chunks; the boolean mask lives in a scratch kept between calls."""
import numpy as np

SHORT, CHUNK = 128, 1024
_SCRATCH = {}


def _mask_scratch(shape):
    buf = _SCRATCH.get(shape)
    if buf is None:
        if len(_SCRATCH) > 8:
            _SCRATCH.clear()
        buf = _SCRATCH[shape] = np.ones(shape, bool)
    buf[...] = True
    return buf


def _context(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(0)):
        sees = keep[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, scale=None, softcap=None, sinks=None,
                                 return_weights=False):
    dtype, lead = query.dtype, query.shape[:-3]
    h, q_len, d = query.shape[-3:]
    g, s, dv = value.shape[-3:]
    rep = h // max(g, 1)
    scale = np.float32(1.0 / np.sqrt(max(d, 1)) if scale is None else scale)
    q = query.astype(np.float32) * scale
    k = np.repeat(key.astype(np.float32), rep, axis=-3)
    v = np.repeat(value.astype(np.float32), rep, axis=-3)
    keep = _mask_scratch(lead + (h, q_len, s))
    if mask is not None:
        keep &= mask
    if is_causal:
        off = np.asarray(0 if q_offset is None else q_offset)
        off = off.reshape(off.shape + (1,) * (keep.ndim - off.ndim))
        keep &= np.arange(s) <= np.arange(q_len)[:, None] + off

    def scores(a, b):
        x = q @ np.swapaxes(k[..., a:b, :], -1, -2)
        if softcap is not None:
            x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
        if attn_bias is not None:
            bias = attn_bias if attn_bias.shape[-1] == 1 else attn_bias[..., a:b]
            x = x + bias.astype(np.float32)
        return np.where(keep[..., a:b], x, np.float32(-np.inf))

    sink = np.float32(-np.inf) if sinks is None else sinks.astype(np.float32)[:, None, None]
    with np.errstate(all="ignore"):
        if s <= SHORT:
            x = scores(0, s)
            top = np.maximum(x.max(-1, keepdims=True, initial=-np.inf), sink)
            top = np.where(top == -np.inf, 0, top)
            p = np.where(keep, np.exp(x - top), 0)
            total = p.sum(-1, keepdims=True) + np.exp(sink - top)
        else:
            top = np.broadcast_to(sink, lead + (h, q_len, 1)).astype(np.float32)
            chunks = [(a, min(a + CHUNK, s)) for a in range(0, s, CHUNK)]
            xs = [scores(a, b) for a, b in chunks]
            for x in xs:
                top = np.maximum(top, x.max(-1, keepdims=True))
            top = np.where(top == -np.inf, 0, top)
            total = np.exp(sink - top)
            p = np.empty(lead + (h, q_len, s), np.float32)
            for (a, b), x in zip(chunks, xs):
                p[..., a:b] = np.where(keep[..., a:b], np.exp(x - top), 0)
                total = total + p[..., a:b].astype(dtype).sum(-1, keepdims=True).astype(np.float32)
        p = p / np.where(total == 0, 1, total)
        out = _context(p, v, keep).astype(dtype)
    return {"output": out, "weights": p.astype(dtype)} if return_weights else out


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
