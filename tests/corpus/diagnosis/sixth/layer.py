"""The attention layer of a decoder: flat kernels, one product for keys and values, a growing cache."""
import numpy as np


def split_heads(x, heads):
    *lead, length, width = x.shape
    return x.reshape(*lead, length, heads, width // heads).swapaxes(-2, -3)


def merge_heads(x):
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def flat_kernel(w):
    heads, d_in, d_head = w.shape
    return w.transpose(1, 0, 2).reshape(d_in, heads * d_head)


def dense(x, kernel, bias=None):
    y = x.astype(np.float64) @ kernel.astype(np.float64)
    if bias is not None:
        y = y + bias.reshape(-1)
    return y


class DecoderAttention:
    def __init__(self, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, scale):
        self.num_heads, _, self.head_dim = w_q.shape
        self.num_kv_heads, _, self.value_dim = w_v.shape
        self.kernel_q, self.bias_q = flat_kernel(w_q), b_q
        self.kernel_k, self.bias_k = flat_kernel(w_k), b_k
        self.kernel_v, self.bias_v = flat_kernel(w_v), b_v
        self.kernel_o = w_o.reshape(-1, w_o.shape[-1])
        self.bias_o = b_o
        self.scaling = self.head_dim**-0.5 if scale is None else scale

    def repeat_kv(self, x):
        return np.repeat(x, self.num_heads // self.num_kv_heads, axis=-3)

    def project(self, query, key, value):
        q = split_heads(dense(query, self.kernel_q, self.bias_q), self.num_heads)
        kv = np.concatenate(
            [dense(key, self.kernel_k, self.bias_k), dense(value, self.kernel_v, self.bias_v)], axis=-1
        )
        cut = self.num_kv_heads * self.head_dim
        k = split_heads(kv[..., :cut], self.num_kv_heads)
        v = split_heads(kv[..., cut:], self.num_kv_heads)
        return q, k, v

    def core(self, q, k, v, mask, attn_bias, is_causal, q_offset):
        q_len, kv_len = q.shape[-2], k.shape[-2]
        scores = (q * self.scaling) @ self.repeat_kv(k).swapaxes(-1, -2)
        if attn_bias is not None:
            scores = scores + attn_bias
        keep = np.ones(scores.shape, bool)
        if mask is not None:
            keep = keep & mask
        if attn_bias is not None:
            keep = keep & ~np.isneginf(attn_bias)
        if is_causal:
            start = np.asarray(0 if q_offset is None else q_offset)
            start = start.reshape(start.shape + (1, 1, 1)) if start.ndim else start
            positions = np.arange(q_len)[:, None] + start
            keep = keep & (np.arange(kv_len)[None, :] <= positions)
        scores = np.where(keep, scores, -np.inf)
        some = keep.any(axis=-1, keepdims=True)
        peak = np.where(some, scores.max(axis=-1, keepdims=True, initial=-np.inf), 0.0)
        e = np.where(keep, np.exp(scores - peak), 0.0)
        probs = np.where(some, e / e.sum(axis=-1, keepdims=True), 0.0)
        return probs @ self.repeat_kv(v), probs

    def finish(self, context):
        return dense(merge_heads(context), self.kernel_o, self.bias_o)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
    attn_bias=None, is_causal=False, q_offset=None, scale=None, past_key=None, past_value=None,
    return_weights=False,
):
    dtype = query.dtype
    block = DecoderAttention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, scale)
    with np.errstate(all="ignore"):
        q, k, v = block.project(query, key, value)
        if past_key is not None:
            k = np.concatenate([past_key, k], axis=-2)
            v = np.concatenate([past_value, v], axis=-2)
        context, probs = block.core(q, k, v, mask, attn_bias, is_causal, q_offset)
        found = {"output": block.finish(context).astype(dtype)}
    if return_weights:
        found["weights"] = probs.astype(dtype)
    if past_key is not None:
        found["present_key"] = k.astype(dtype)
        found["present_value"] = v.astype(dtype)
    return found
