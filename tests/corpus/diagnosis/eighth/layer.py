"""An attention module with flat projections, rotary-free, a cache, grouped heads and a window."""
import numpy as np


class Linear:
    def __init__(self, weight, bias, wide):
        heads, d_in, d_head = weight.shape
        self.kernel = np.moveaxis(weight, 0, 1).reshape(d_in, heads * d_head).astype(wide)
        self.bias = None if bias is None else bias.reshape(-1).astype(wide)
        self.heads, self.d_head, self.wide = heads, d_head, wide

    def __call__(self, x):
        y = x.astype(self.wide) @ self.kernel
        if self.bias is not None:
            y = y + self.bias
        y = y.reshape(*x.shape[:-1], self.heads, self.d_head)
        return np.moveaxis(y, -2, -3)


def visible_keys(shape, wide, mask, attn_bias, is_causal, q_offset, window, kv_lengths):
    """An additive mask over (..., heads, q, k) and what of it may be seen."""
    *lead, _, t, s = shape
    bias = np.zeros(shape, wide)
    if attn_bias is not None:
        bias = bias + attn_bias.astype(wide)
    keep = bias > -np.inf
    keep |= np.isnan(bias)
    if mask is not None:
        keep = keep & mask
    start = np.asarray(0 if q_offset is None else q_offset)
    start = start[..., None, None, None] if start.ndim else start
    i, j = np.arange(t)[:, None] + start, np.arange(s)[None, :]
    if is_causal:
        keep = keep & (j <= i)
    if window is not None:
        left, right = window
        if left is not None:
            keep = keep & (j >= i - left)
        if right is not None:
            keep = keep & (j <= i + right)
    if kv_lengths is not None:
        keep = keep & (j < np.asarray(kv_lengths)[..., None, None, None])
    return bias, keep


def softmax(scores, keep):
    top = np.max(np.where(keep, scores, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    e = np.where(keep, np.exp(scores - top), 0)
    z = e.sum(axis=-1, keepdims=True)
    return np.where(z > 0, e / np.where(z > 0, z, 1), np.where(np.isnan(z) & keep, np.nan, 0))


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
    attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None, scale=None, softcap=None,
    past_key=None, past_value=None, return_weights=False,
):
    dtype = query.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        q = Linear(w_q, b_q, wide)(query)
        k = Linear(w_k, b_k, wide)(key)
        v = Linear(w_v, b_v, wide)(value)
        if past_key is not None:
            k = np.concatenate([past_key.astype(wide), k], axis=-2)
            v = np.concatenate([past_value.astype(wide), v], axis=-2)
        share = q.shape[-3] // k.shape[-3]
        keys, values = np.repeat(k, share, axis=-3), np.repeat(v, share, axis=-3)
        scores = q @ keys.swapaxes(-1, -2) * wide(q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            scores = wide(softcap) * np.tanh(scores / wide(softcap))
        bias, keep = visible_keys(scores.shape, wide, mask, attn_bias, is_causal, q_offset, window, kv_lengths)
        scores = scores + bias
        probs = softmax(scores, keep)
        finite = np.isfinite(values)
        context = probs @ np.where(finite, values, 0)
        if not finite.all():
            used = keep.astype(wide) @ (~finite).astype(wide) > 0
            context = np.where(used, np.nan, context)
        context = np.moveaxis(context, -3, -2)
        context = context.reshape(*context.shape[:-2], -1) if context.size else np.zeros(
            (*context.shape[:-2], context.shape[-2] * context.shape[-1]), wide)
        output = context @ w_o.astype(wide).reshape(-1, w_o.shape[-1])
        if b_o is not None:
            output = output + b_o.astype(wide)
    found = {"output": output.astype(dtype)}
    if return_weights:
        found["weights"] = probs.astype(dtype)
    if past_key is not None:
        found["present_key"], found["present_value"] = k.astype(dtype), v.astype(dtype)
    return found


dtypes = ("float64", "float32", "float16")
