"""torch.nn.MultiheadAttention on NumPy: one packed in_proj weight and one packed bias, (L, N, E)
activations inside, heads padded to a multiple of ALIGN columns, masks by torch's conventions."""
import numpy as np

ALIGN = 8


def _pad_cols(x, width):
    out = np.zeros(x.shape[:-1] + (width,), np.float32)
    out[..., :x.shape[-1]] = x
    return out


def _linear_weight(w, width):
    """(heads, d_in, d) -> (heads * width, d_in), a row per output as nn.Linear keeps it."""
    w = _pad_cols(w, width)
    return np.swapaxes(w, -1, -2).reshape(w.shape[0] * width, w.shape[1])


def _in_proj_bias(parts, sizes):
    """The one bias of in_proj, missing parts zero."""
    packed = np.zeros(sum(sizes), np.float32)
    at = 0
    for part, size in zip(parts, sizes):
        if part is not None:
            packed[at:at + size] = part.reshape(-1)
            at += size
    return packed


def _context(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.reshape(-1, bad.shape[-1]).any(0)):
        sees = keep[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                         b_o=None, mask=None, is_causal=False, q_offset=None, scale=None,
                         return_weights=False):
    dtype, lead = query.dtype, query.shape[:-2]
    h, d, g, dv = w_q.shape[0], w_q.shape[2], w_k.shape[0], w_v.shape[2]
    t, s, n = query.shape[-2], key.shape[-2], int(np.prod(lead))
    rep = h // max(g, 1)
    wd, wv = -(-d // ALIGN) * ALIGN, -(-dv // ALIGN) * ALIGN
    scale = 1.0 / np.sqrt(max(d, 1)) if scale is None else scale
    sizes = (h * wd, g * wd, g * wv)
    pad = lambda b, w: None if b is None else _pad_cols(b, w)
    bias = _in_proj_bias((pad(b_q, wd), pad(b_k, wd), pad(b_v, wv)), sizes)
    rows = (_linear_weight(w_q, wd), _linear_weight(w_k, wd), _linear_weight(w_v, wv))
    first = lambda x: np.moveaxis(x.reshape((n,) + x.shape[-2:]), 1, 0).astype(np.float32)   # L N E
    a, b = sizes[0], sizes[0] + sizes[1]
    with np.errstate(all="ignore"):
        if query is key and key is value:
            packed = first(query) @ np.concatenate(rows).T + bias
            q, k, v = packed[..., :a], packed[..., a:b], packed[..., b:]
        else:
            q = first(query) @ rows[0].T + bias[:a]
            k = first(key) @ rows[1].T + bias[a:b]
            v = first(value) @ rows[2].T + bias[b:]
        q = q.reshape(t, n, h, wd).transpose(1, 2, 0, 3) * np.float32(scale)
        k = np.repeat(k.reshape(s, n, g, wd).transpose(1, 2, 0, 3), rep, 1)
        v = np.repeat(v.reshape(s, n, g, wv).transpose(1, 2, 0, 3), rep, 1)
        keep = np.ones((1, 1, t, s), bool)
        if mask is not None:
            if mask.ndim == 2:                               # attn_mask (L, S), all alike
                keep = keep & mask
            else:
                per = np.broadcast_to(mask, lead + mask.shape[-3:])
                keep = keep & per.reshape((n,) + mask.shape[-3:])
        if is_causal:
            off = np.asarray(0 if q_offset is None else q_offset)
            off = np.broadcast_to(off.reshape(off.shape + (1,) * (len(lead) - off.ndim)), lead)
            keep = keep & (np.arange(s) <= np.arange(t)[:, None] + off.reshape(n, 1, 1, 1))
        keep = np.broadcast_to(keep, (n, h, t, s))
        x = np.where(keep, q @ k.swapaxes(-1, -2), -np.inf)
        top = x.max(-1, keepdims=True, initial=-np.inf)
        p = np.where(keep, np.exp(x - np.where(top == -np.inf, 0, top)), 0)
        total = p.sum(-1, keepdims=True)
        p = p / np.where(total == 0, 1, total)
        ctx = _context(p, v, keep)[..., :dv].transpose(2, 0, 1, 3).reshape(t * n, h * dv)
        out = ctx @ w_o.astype(np.float32).reshape(h * dv, -1 if w_o.size else w_o.shape[-1])
        if b_o is not None:
            out = out + b_o.astype(np.float32)
    out = np.moveaxis(out.reshape(t, n, w_o.shape[-1]), 0, 1).reshape(lead + (t, w_o.shape[-1])).astype(dtype)
    if return_weights:
        return {"output": out, "weights": p.reshape(lead + (h, t, s)).astype(dtype)}
    return out


multi_head_attention.dtypes = ("float32", "float16", "bfloat16")
