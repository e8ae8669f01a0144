"""The attention block of a decoder: fused qkv projection where it can be, GQA, a growing cache, one mask."""

import numpy as np


class SelfAttention:
    def __init__(self, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None):
        self.n_heads, self.d_q, self.d_k = w_q.shape
        self.n_kv = w_k.shape[0]
        self.d_v = w_v.shape[-1]
        # checkpoints hold (in, heads * width)
        self.wq = self.flat(w_q)
        self.wk = self.flat(w_k)
        self.wv = self.flat(w_v)
        self.wo = w_o.reshape(self.n_heads * self.d_v, -1).astype(np.float64)
        zeros = lambda n: np.zeros(n)
        self.bq = zeros(self.n_heads * self.d_k) if b_q is None else b_q.reshape(-1).astype(np.float64)
        self.bk = zeros(self.n_kv * self.d_k) if b_k is None else b_k.reshape(-1).astype(np.float64)
        self.bv = zeros(self.n_kv * self.d_v) if b_v is None else b_v.reshape(-1).astype(np.float64)
        self.bo = None if b_o is None else b_o.astype(np.float64)
        self.sizes = [self.n_heads * self.d_k, self.n_kv * self.d_k, self.n_kv * self.d_v]
        self.w_qkv = None
        if self.wq.shape[0] == self.wk.shape[0] == self.wv.shape[0]:
            self.w_qkv = np.concatenate([self.wq, self.wk, self.wv], axis=1)
            self.b_qkv = np.concatenate([self.bq, self.bk, self.bv])

    @staticmethod
    def flat(w):
        heads, d_in, d = w.shape
        return w.astype(np.float64).transpose(1, 0, 2).reshape(d_in, heads * d)

    def project(self, x, context_k, context_v):
        if self.w_qkv is not None and x is context_k and x is context_v:
            qkv = x @ self.w_qkv + self.b_qkv
            cut = np.cumsum(self.sizes)[:2]
            return np.split(qkv, cut, axis=-1)
        return x @ self.wq + self.bq, context_k @ self.wk + self.bk, context_v @ self.wv + self.bv

    def split_heads(self, x, n):
        x = x.reshape(*x.shape[:-1], n, x.shape[-1] // n)
        return np.swapaxes(x, -3, -2)

    def merge_heads(self, x):
        x = np.swapaxes(x, -3, -2)
        return x.reshape(*x.shape[:-2], self.n_heads * self.d_v)

    def allowed(self, t, s, mask, causal, start, window):
        ok = np.ones((t, s), dtype=bool)
        pos_q = start + np.arange(t)[:, None]
        pos_k = np.arange(s)[None, :]
        if causal:
            ok = ok & (pos_k <= pos_q)
        if window is not None:
            back, ahead = window
            if back is not None:
                ok = ok & (pos_q - pos_k <= back)
            if ahead is not None:
                ok = ok & (pos_k - pos_q <= ahead)
        return ok if mask is None else ok & mask

    def forward(self, x, context_k, context_v, *, mask=None, bias=None, causal=False, start=0, window=None,
                scale=None, cap=None, cache=None, dtype=np.float32):
        q, k, v = self.project(x, context_k, context_v)
        q = self.split_heads(q, self.n_heads)
        k = self.split_heads(k, self.n_kv)
        v = self.split_heads(v, self.n_kv)
        present = None
        if cache is not None:
            k = np.concatenate([cache[0], k], axis=-2)
            v = np.concatenate([cache[1], v], axis=-2)
            present = (k.astype(dtype), v.astype(dtype))
        k = np.repeat(k, self.n_heads // self.n_kv, axis=-3)
        v = np.repeat(v, self.n_heads // self.n_kv, axis=-3)
        factor = 1.0 / np.sqrt(self.d_k) if scale is None else scale
        scores = (q * factor) @ np.swapaxes(k, -2, -1)
        if cap is not None:
            scores = cap * np.tanh(scores / cap)
        ok = self.allowed(scores.shape[-2], scores.shape[-1], mask, causal, start, window)
        if bias is not None:
            scores = scores + bias
            ok = ok & (bias != -np.inf)
        ok = np.broadcast_to(ok, scores.shape)
        scores = np.where(ok, scores, -np.inf)
        some = ok.any(axis=-1, keepdims=True)
        peak = np.where(some, scores.max(axis=-1, keepdims=True, initial=-np.inf), 0.0)
        p = np.where(ok, np.exp(scores - peak), 0.0)
        p = p / np.where(some, p.sum(axis=-1, keepdims=True), 1.0)
        y = self.merge_heads(p @ v) @ self.wo
        if self.bo is not None:
            y = y + self.bo
        return y, p, present


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
                         attn_bias=None, is_causal=False, q_offset=None, window=None, scale=None, softcap=None,
                         past_key=None, past_value=None, return_weights=False):
    layer = SelfAttention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o)
    start = 0 if q_offset is None else np.asarray(q_offset)
    if np.ndim(start):
        start = start[..., None, None, None]
    same = query.shape == key.shape == value.shape and np.array_equal(query, key) and np.array_equal(query, value)
    x = query.astype(np.float64)
    inputs = (x, x, x) if same else (x, key.astype(np.float64), value.astype(np.float64))
    cache = None if past_key is None else (past_key, past_value)
    with np.errstate(all="ignore"):
        y, p, present = layer.forward(*inputs, mask=mask, bias=attn_bias, causal=is_causal, start=start,
                                      window=window, scale=scale, cap=softcap, cache=cache, dtype=query.dtype)
        result = {"output": y.astype(query.dtype)}
        if return_weights:
            result["weights"] = p.astype(query.dtype)
        if cache is not None:
            result["present_key"], result["present_value"] = present
    return result
