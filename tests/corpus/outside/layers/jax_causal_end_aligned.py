"""jax.nn.dot_product_attention on NumPy: BTNH layout, einsums over grouped heads (BTKGH, BSKH),
one logits mask assembled from mask, causality, local window and kv lengths."""
import numpy as np

BIG_NEGATIVE = -0.7 * float(np.finfo(np.float32).max)


def _grouped(x, lead, heads, groups, t, s):
    """(..., H, T, S)-broadcastable -> (N, K, G, T, S)-broadcastable: K key heads, G queries each."""
    x = np.asarray(x)
    if x.ndim == 2:
        return x[None, None, None]
    n = int(np.prod(lead))
    x = np.broadcast_to(x, lead + (heads,) + x.shape[-2:]).reshape((n, heads) + x.shape[-2:])
    return x.reshape((n, groups, heads // max(groups, 1)) + x.shape[-2:])


def _window(window, pos, col):
    left, right = window
    keep = np.ones((1, 1, 1, 1, 1), bool)
    if left is not None:
        keep = keep & (col >= pos - left)
    if right is not None:
        keep = keep & (col <= pos + right)
    return keep


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False,
                                 q_offset=None, window=None, kv_lengths=None, scale=None,
                                 return_weights=False, return_lse=False):
    dtype, lead = query.dtype, query.shape[:-3]
    heads, t, d = query.shape[-3:]
    groups, s, dv = value.shape[-3:]
    n = int(np.prod(lead))
    rep = heads // max(groups, 1)
    scale = 1.0 / np.sqrt(max(d, 1)) if scale is None else scale
    to_btnh = lambda x: np.moveaxis(x.reshape((n,) + x.shape[-3:]), -3, -2).astype(np.float32)
    q, k, v = to_btnh(query), to_btnh(key), to_btnh(value)          # B T N H
    q = q.reshape(n, t, groups, rep, d)

    def per_batch(x):
        x = np.asarray(x)
        x = np.broadcast_to(x.reshape(x.shape + (1,) * (len(lead) - x.ndim)) if lead else x.reshape(-1)[:1], lead or (1,))
        return x.reshape(-1, 1, 1, 1, 1)

    col = np.arange(s)
    offset = per_batch(0 if q_offset is None else q_offset)
    if kv_lengths is not None and is_causal:                    # the queries are the last tokens
        offset = per_batch(kv_lengths) - t
    pos = np.arange(t)[:, None] + offset
    keep = np.ones((1, 1, 1, t, s), bool)
    if mask is not None:
        keep = keep & _grouped(mask, lead, heads, groups, t, s)
    if is_causal:
        keep = keep & (col <= pos)
    if window is not None:
        keep = keep & _window(window, pos, col)
    if kv_lengths is not None:
        keep = keep & (col < per_batch(kv_lengths))
    has_key = keep.any(-1, keepdims=True)

    with np.errstate(all="ignore"):
        logits = q.transpose(0, 2, 3, 1, 4).reshape(n, groups, rep * t, d) @ k.transpose(0, 2, 3, 1)
        logits = logits.reshape(n, groups, rep, t, s) * np.float32(scale)      # B K G T S
        if attn_bias is not None:
            logits = logits + _grouped(attn_bias, lead, heads, groups, t, s).astype(np.float32)
        logits = np.where(keep, logits, np.float32(BIG_NEGATIVE))
        top = logits.max(-1, keepdims=True, initial=BIG_NEGATIVE)
        unnorm = np.where(keep, np.exp(logits - top), 0)
        total = unnorm.sum(-1, keepdims=True)
        probs = np.where(has_key, unnorm / np.where(total == 0, 1, total), 0)
        lse = np.where(has_key, np.log(total) + top, -np.inf)[..., 0]
        bad = ~np.isfinite(v).all(-1)                                          # B S K
        clean = np.where(bad[..., None], 0, v).transpose(0, 2, 1, 3)
        out = (probs.reshape(n, groups, rep * t, s) @ clean).reshape(n, groups, rep, t, dv)
        seen = np.broadcast_to(keep, probs.shape)
        for j in np.flatnonzero(bad.any((0, 2))):
            here = seen[..., j, None] & bad[:, j, :, None, None, None]
            out = out + np.where(here, probs[..., j, None] * v[:, j, :, None, None, :], 0)
    out = out.reshape(lead + (heads, t, dv)).astype(dtype)
    if not (return_weights or return_lse):
        return out
    result = {"output": out}
    if return_weights:
        result["weights"] = probs.reshape(lead + (heads, t, s)).astype(dtype)
    if return_lse:
        result["lse"] = lse.reshape(lead + (heads, t)).astype(dtype)
    return result


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
