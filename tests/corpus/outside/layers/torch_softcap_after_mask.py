"""torch.nn.functional.scaled_dot_product_attention on NumPy: every (batch, head) pair becomes
one row of a (N*H, L, S) baddbmm, the padding lengths become a key_padding_mask (True = ignore)
and the boolean masks become additive ones, as torch does."""
import numpy as np


def _additive(keep, dtype):
    return np.where(keep, 0.0, -np.inf).astype(dtype)


def _flat(x, lead, h, q_len, s):
    """(..., H, L, S)-broadcastable -> (N*H, L, S) or (1, L, S), the order of baddbmm's rows."""
    x = np.asarray(x)
    n = int(np.prod(lead))
    if x.ndim == 2:
        return np.broadcast_to(x, (1, q_len, s))
    per_batch = np.broadcast_to(x, lead + x.shape[-3:]).reshape((n,) + x.shape[-3:])
    return np.broadcast_to(per_batch, (n, h) + x.shape[-2:]).reshape((n * h,) + x.shape[-2:])


def _bmm_values(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    keep = np.broadcast_to(keep, p.shape)
    for j in np.flatnonzero(bad.any(0)):
        sees = keep[:, :, j, None] & bad[:, j, None, None]
        out = out + np.where(sees, p[:, :, j, None] * v[:, j, None, :], 0)
    return out


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, kv_lengths=None, scale=None, softcap=None,
                                 return_weights=False, return_lse=False):
    dtype, work = query.dtype, np.result_type(query.dtype, np.float32)
    if work != np.float64:
        work = np.dtype(np.float32)
    *lead, h, q_len, d = query.shape
    lead = tuple(lead)
    g, s = key.shape[-3:-1]
    n = int(np.prod(lead))
    rep = h // max(g, 1)
    scale = 1.0 / np.sqrt(max(d, 1)) if scale is None else scale
    q = query.astype(work).reshape(n * h, q_len, d)
    k = np.repeat(key.astype(work), rep, axis=-3).reshape(n * h, s, d)
    v = np.repeat(value.astype(work), rep, axis=-3).reshape(n * h, s, value.shape[-1])

    ignore = np.zeros((1, 1, s), bool)                  # key_padding_mask
    keep = np.ones((1, 1, 1), bool)                     # attn_mask
    if kv_lengths is not None:
        lens = np.asarray(kv_lengths).reshape((-1,) + (1,) * (len(lead) - 1))
        lens = np.broadcast_to(lens, lead).reshape(n)
        ignore = (np.arange(s) >= np.repeat(lens, h)[:, None])[:, None, :]
    if mask is not None:
        if mask.ndim > 2 and mask.shape[-3:-1] == (1, 1):     # only the keys: it is padding
            ignore = ignore | ~_flat(mask, lead, h, q_len, s)
        else:
            keep = _flat(mask, lead, h, q_len, s)
    if is_causal:
        off = np.asarray(0 if q_offset is None else q_offset)
        off = np.broadcast_to(off.reshape(off.shape + (1,) * (len(lead) - off.ndim)), lead).reshape(n)
        row = np.arange(q_len)[:, None] + np.repeat(off, h)[:, None, None]
        keep = keep & (np.arange(s) <= row)
    keep = keep & ~ignore
    attn_mask = _additive(keep, work)

    with np.errstate(all="ignore"):
        scores = np.where(keep, (q * work.type(scale)) @ k.swapaxes(-1, -2), 0) + attn_mask
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if attn_bias is not None:
            scores = scores + np.where(keep, _flat(attn_bias, lead, h, q_len, s), 0)
        scores = scores.astype(work)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        top = np.where(top == -np.inf, 0, top)
        p = np.exp(scores - top)
        total = p.sum(-1, keepdims=True)
        p = p / np.where(total == 0, 1, total)
        out = _bmm_values(p, v, keep)
        lse = (np.log(total) + top)[..., 0]
    out = out.reshape(lead + (h, q_len, -1 if out.size else v.shape[-1])).astype(dtype)
    if not (return_weights or return_lse):
        return out
    result = {"output": out}
    if return_weights:
        result["weights"] = p.reshape(lead + (h, q_len, s)).astype(dtype)
    if return_lse:
        result["lse"] = lse.reshape(lead + (h, q_len)).astype(dtype)
    return result


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
