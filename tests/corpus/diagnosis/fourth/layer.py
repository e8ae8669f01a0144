"""A model's attention layer: packed weights, fused qkv for self-attention, GQA, biases, a cache, merged heads."""
import math

import numpy as np


def repeat_kv(x, n_rep):
    """(b, kv_heads, n, d) -> (b, kv_heads * n_rep, n, d), as torch.repeat_interleave on axis 1."""
    b, kv_heads, n, d = x.shape
    x = np.broadcast_to(x[:, :, None], (b, kv_heads, n_rep, n, d))
    return x.reshape(b, kv_heads * n_rep, n, d)


class Linear:
    """y = x @ weight.T + bias, with weight (out, in)."""

    def __init__(self, w, b):  # w (heads, in, d), b (heads, d)
        heads, d_in, d = w.shape
        self.weight = w.transpose(0, 2, 1).reshape(heads * d, d_in).astype(np.float64)
        self.bias = np.zeros(heads * d) if b is None else b.reshape(-1).astype(np.float64)

    def __call__(self, x):
        return x @ self.weight.T + self.bias


class Attention:
    def __init__(self, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o):
        self.num_heads, _, self.head_dim = w_q.shape
        self.num_kv_heads = w_k.shape[0]
        self.v_dim = w_v.shape[-1]
        self.n_rep = self.num_heads // self.num_kv_heads
        self.q_proj, self.k_proj, self.v_proj = Linear(w_q, b_q), Linear(w_k, b_k), Linear(w_v, b_v)
        self.o_weight = w_o.reshape(-1, w_o.shape[-1]).astype(np.float64)
        self.o_bias = b_o
        self.scaling = 1 / math.sqrt(self.head_dim)

    def qkv(self, x):
        """One product for all three, then cut."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        weight = np.concatenate([p.weight for p in parts])
        bias = np.concatenate([p.bias for p in parts])
        packed = x @ weight.T + bias
        q_end = self.num_heads * self.head_dim
        k_end = q_end + self.num_kv_heads * self.head_dim
        return packed[..., :q_end], packed[..., q_end:k_end], packed[..., k_end:]

    def split(self, x, heads, width):
        b, n, _ = x.shape
        return x.reshape(b, n, heads, width).transpose(0, 2, 1, 3)

    def forward(self, query, key, value, mask, is_causal, q_offset, kv_lengths, scale, past, dtype):
        if query is key and key is value:
            q, k, v = self.qkv(query)
        else:
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q = self.split(q, self.num_heads, self.head_dim)
        k = self.split(k, self.num_kv_heads, self.head_dim)
        v = self.split(v, self.num_kv_heads, self.v_dim)
        present = None
        if past is not None:
            past_key, past_value = past
            present = tuple(np.concatenate([old, new.astype(dtype)], axis=2) for old, new in ((past_key, k), (past_value, v)))
            k = np.concatenate([past_key.astype(np.float64), k], axis=2)
            v = np.concatenate([past_value.astype(np.float64), v], axis=2)
        k = repeat_kv(k, self.n_rep)
        v = repeat_kv(v, self.n_rep)

        n, m = q.shape[2], k.shape[2]
        scores = np.matmul(q, k.transpose(0, 1, 3, 2)) * (self.scaling if scale is None else scale)
        keep = np.ones((1, 1, n, m), bool)
        if mask is not None:
            keep = keep & mask
        if is_causal:
            offset = np.zeros(1, int) if q_offset is None else np.reshape(q_offset, -1)
            positions = offset[:, None] + np.arange(n)
            keep = keep & (np.arange(m) <= positions[..., None])[:, None]
        if kv_lengths is not None:
            written = np.arange(m) < np.reshape(kv_lengths, (-1, 1))
            keep = keep & written[:, None, None, :]
            v = np.where(written[:, None, :, None], v, 0)
        keep = np.broadcast_to(keep, scores.shape)
        scores = np.where(keep, scores, -np.inf)
        any_key = keep.any(-1, keepdims=True)
        top = np.where(any_key, scores.max(-1, keepdims=True, initial=-np.inf), 0)
        probs = np.exp(scores - top)
        probs = probs / np.where(any_key, probs.sum(-1, keepdims=True), 1)

        context = np.matmul(probs, v)
        b = context.shape[0]
        context = context.transpose(0, 2, 1, 3).reshape(b, n, self.num_heads * self.v_dim)
        output = context @ self.o_weight
        if self.o_bias is not None:
            output = output + self.o_bias
        return output, probs, present


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None,
                         mask=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None,
                         past_key=None, past_value=None, return_weights=False):
    batch, dtype = query.shape[:-2], query.dtype
    size = int(np.prod(batch))
    same = query is key and key is value
    if not same and query.shape == key.shape == value.shape:
        same = np.array_equal(query, key) and np.array_equal(key, value)
    flat = lambda x, rest: x.reshape(size, *x.shape[-rest:])
    q_in = flat(query, 2).astype(np.float64)
    k_in, v_in = (q_in, q_in) if same else (flat(key, 2).astype(np.float64), flat(value, 2).astype(np.float64))
    if mask is not None and mask.ndim > 2:
        mask = np.broadcast_to(mask, (*batch, *mask.shape[-3:])).reshape(size, *mask.shape[-3:])
    past = None if past_key is None else (flat(past_key, 3), flat(past_value, 3))
    layer = Attention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)
    output, probs, present = layer.forward(q_in, k_in, v_in, mask, is_causal, q_offset, kv_lengths, scale, past, dtype)
    result = {"output": output.reshape(*batch, *output.shape[1:]).astype(dtype)}
    if return_weights:
        result["weights"] = probs.reshape(*batch, *probs.shape[1:]).astype(dtype)
    if present is not None:
        result["present_key"], result["present_value"] = (x.reshape(*batch, *x.shape[1:]) for x in present)
    return result
