"""The ai.onnx Attention operator on NumPy: hidden-size (B, L, H*d) inputs inside, a KV cache in
blocks of BLOCK slots, sqrt(scale) on both factors so that float16 products stay in range."""
import numpy as np

BLOCK = 16


def _to_3d(x):
    return np.swapaxes(x, -3, -2).reshape(x.shape[:-3] + (x.shape[-2], x.shape[-3] * x.shape[-1]))


def _to_heads(x, heads):
    width = x.shape[-1] // max(heads, 1)
    return np.swapaxes(x.reshape(x.shape[:-1] + (heads, width)), -3, -2)


def _cache(past, new):
    """past and new, one after the other, in a buffer of whole blocks; also the slots in use."""
    used = past.shape[-2] + new.shape[-2]
    room = -(-used // BLOCK) * BLOCK
    buf = np.zeros(new.shape[:-2] + (room, new.shape[-1]), new.dtype)
    buf[..., :past.shape[-2], :] = past
    buf[..., past.shape[-2]:used, :] = new
    return buf, used


def _pad_last(x, room, fill):
    """A mask or bias over the keys in use, made as wide as the buffer."""
    if x.shape[-1] == 1:
        return x
    if x.shape[-1] < room:
        x = np.concatenate([x, np.full(x.shape[:-1] + (room - x.shape[-1],), fill, x.dtype)], -1)
    return x


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, scale=None, softcap=None, past_key=None,
                                 past_value=None, return_weights=False):
    dtype = query.dtype
    *lead, h, q_len, d = query.shape
    lead = tuple(lead)
    g = key.shape[-3]
    dv = value.shape[-1]
    Q, K, V = _to_3d(query), _to_3d(key), _to_3d(value)          # what the graph hands over
    q = _to_heads(Q, h) if h else query
    k, v = (_to_heads(K, g), _to_heads(V, g)) if g else (key, value)
    empty = lambda x: x[..., :0, :]
    k, used = _cache(empty(k) if past_key is None else past_key, k)
    v, used = _cache(empty(v) if past_value is None else past_value, v)
    room = k.shape[-2]

    keep = np.arange(room) < used
    if is_causal:
        off = np.asarray(0 if q_offset is None else q_offset)
        off = off.reshape(off.shape + (1,) * (len(lead) + 3 - off.ndim))
        keep = keep & (np.arange(room) <= np.arange(q_len)[:, None] + off)
    if mask is not None:
        keep = keep & _pad_last(mask, room, False)
    scale = 1.0 / np.sqrt(max(d, 1)) if scale is None else float(scale)
    root = np.float32(np.sqrt(abs(scale)))

    rep = h // max(g, 1)
    grouped = lambda x: x.reshape(lead + (g, rep * q_len) + x.shape[-1:])
    with np.errstate(all="ignore"):
        qs = grouped(q.astype(np.float32)) * root
        ks = k.astype(np.float32) * root
        x = (qs @ np.swapaxes(ks, -1, -2)).reshape(lead + (h, q_len, room))
        if softcap is not None:
            x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
        if attn_bias is not None:
            x = x + _pad_last(np.asarray(attn_bias, np.float32), room, 0)
        keep = np.broadcast_to(keep, x.shape)
        x = np.where(keep, x, -np.inf)
        top = x.max(-1, keepdims=True, initial=-np.inf)
        p = np.where(keep, np.exp(x - np.where(top == -np.inf, 0, top)), 0)
        total = p.sum(-1, keepdims=True)
        p = p / np.where(total == 0, 1, total)
        vf = v.astype(np.float32)
        bad = ~np.isfinite(vf).all(-1)
        out = (grouped(p) @ np.where(bad[..., None], 0, vf)).reshape(lead + (h, q_len, dv))
        for j in np.flatnonzero(bad.any(tuple(range(bad.ndim - 1)))):
            row = np.repeat(vf[..., j:j + 1, :], rep, -3)
            sees = keep[..., j, None] & np.repeat(bad[..., j], rep, -1)[..., None, None]
            out = out + np.where(sees, p[..., j, None] * row, 0)
    Y = _to_3d(out.astype(dtype))
    result = {"output": _to_heads(Y, h) if h else out.astype(dtype)}
    if return_weights:
        result["weights"] = p[..., :used].astype(dtype)
    if past_key is not None:
        result["present_key"], result["present_value"] = k[..., :used, :], v[..., :used, :]
    return result if len(result) > 1 else result["output"]


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
