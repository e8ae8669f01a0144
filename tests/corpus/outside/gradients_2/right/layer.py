"""A layer in NumPy as frameworks write it by hand: flat weights, one matrix product for query, key and value where they are one
input, dense attention that keeps its weights, and a backward pass through all of it."""

import math

import numpy as np

name, version = "manual layer", "3.1"
dtypes = ("float32", "float64")
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "kv_lengths", "scale", "softcap", "sinks", "gqa", "value_dim", "broadcast",
    "empty", "cache", "return_weights", "return_lse", "grad_lse",
}


def flatten(w):
    """(heads, d_in, d_head) as (d_in, heads * d_head)."""
    return np.ascontiguousarray(np.swapaxes(w, 0, 1)).reshape(w.shape[1], -1)


def unflatten(w, shape):
    heads, d_in, d_head = shape
    return np.ascontiguousarray(np.swapaxes(w.reshape(d_in, heads, d_head), 0, 1))


def split_heads(x, heads):
    """(..., length, heads * d) as (..., heads, length, d)."""
    return np.swapaxes(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -2, -3)


def merge_heads(x):
    x = np.swapaxes(x, -2, -3)
    return np.ascontiguousarray(x).reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


class Linear:
    """y = x w + b over the last axis; backward gives the gradients of all three."""

    def __init__(self, w, b):
        self.w, self.b = w, b

    def forward(self, x):
        self.x = x
        y = x @ self.w
        return y if self.b is None else y + self.b

    def backward(self, gy):
        x, g = self.x.reshape(-1, self.x.shape[-1]), gy.reshape(-1, gy.shape[-1])
        self.gw = x.T @ g
        self.gb = None if self.b is None else g.sum(axis=0)
        return gy @ self.w.T


class Attention:
    """Dense attention over (..., heads, length, width), with what its backward pass needs."""

    def __init__(self, options):
        self.o = options

    def visible(self, shape):
        *batch, _, q_len, kv_len = shape
        i, j = np.arange(q_len)[:, None], np.arange(kv_len)
        seen = np.ones((q_len, kv_len), bool)
        if self.o["is_causal"]:
            offset = self.o["q_offset"]
            offset = 0 if offset is None else np.clip(np.asarray(offset, dtype=np.int64), -(1 << 40), 1 << 40)
            if np.ndim(offset) or batch and np.size(offset) > 1:
                offset = np.asarray(offset)[..., None, None, None]
            seen = seen & (j <= i + offset)
        if self.o["kv_lengths"] is not None:
            seen = seen & (j < np.asarray(self.o["kv_lengths"])[..., None, None, None])
        if self.o["mask"] is not None:
            seen = seen & self.o["mask"]
        if self.o["attn_bias"] is not None:
            seen = seen & (self.o["attn_bias"] != -np.inf)
        return np.broadcast_to(seen, shape)

    def forward(self, q, k, v):
        o, dtype = self.o, q.dtype
        self.past = 0
        if o["past_key"] is not None:
            self.past = o["past_key"].shape[-2]
            k = np.concatenate([o["past_key"], k], axis=-2)
            v = np.concatenate([o["past_value"], v], axis=-2)
        self.present = k, v
        if o["kv_lengths"] is not None:
            gone = np.arange(k.shape[-2]) >= np.asarray(o["kv_lengths"])[..., None]
            k = np.where(gone[..., None, :, None], 0, k)
            v = np.where(gone[..., None, :, None], 0, v)
        self.groups = q.shape[-3] // k.shape[-3]
        self.q, self.k, self.v = q, np.repeat(k, self.groups, axis=-3), np.repeat(v, self.groups, axis=-3)
        self.scale = dtype.type(1 / math.sqrt(q.shape[-1]) if o["scale"] is None else o["scale"])
        x = (self.q * self.scale) @ np.swapaxes(self.k, -1, -2)
        self.tanh = None
        if o["softcap"] is not None:
            self.tanh = np.tanh(x / dtype.type(o["softcap"]))
            x = dtype.type(o["softcap"]) * self.tanh
        if o["attn_bias"] is not None:
            x = x + o["attn_bias"].astype(dtype)
        self.seen = self.visible(x.shape)
        x = np.where(self.seen, x, -np.inf)
        sink = np.full(q.shape[-3], -np.inf, dtype) if o["sinks"] is None else o["sinks"].astype(dtype)
        self.sink = sink[:, None]
        top = np.maximum(x.max(axis=-1, initial=-np.inf), self.sink)
        ref = np.where(top == -np.inf, 0, top)[..., None]
        e = np.exp(x - ref)
        e_sink = np.exp(self.sink[..., None] - ref)
        total = e.sum(axis=-1, keepdims=True) + e_sink
        self.some = self.seen.any(axis=-1, keepdims=True)
        self.p = np.where(self.some & self.seen, e / total, 0)
        self.p_sink = np.where(np.isneginf(self.sink[..., None]), 0, e_sink / total)[..., 0]
        self.lse = np.where(self.some[..., 0] & (total[..., 0] == 0), np.nan, (ref + np.log(total))[..., 0])
        return self.p @ self.v

    def backward(self, go, grad_lse):
        gv = np.swapaxes(self.p, -1, -2) @ go
        gp = go @ np.swapaxes(self.v, -1, -2)
        delta = (gp * self.p).sum(axis=-1, keepdims=True)
        if grad_lse is not None:
            delta = delta - grad_lse[..., None].astype(go.dtype)
        gx = self.p * (gp - delta)
        self.grads = {}
        if self.o["attn_bias"] is not None:
            self.grads["attn_bias"] = reduce_to(gx, self.o["attn_bias"])
        if self.o["sinks"] is not None:
            lost = self.p_sink * delta[..., 0]
            self.grads["sinks"] = -lost.sum(axis=(*range(lost.ndim - 2), -1)).astype(self.o["sinks"].dtype)
        if self.tanh is not None:
            gx = np.where(self.seen, gx * (1 - self.tanh**2), 0)
        gx = gx * self.scale
        gq, gk = gx @ self.k, np.swapaxes(gx, -1, -2) @ self.q
        return gq, self.fold(gk), self.fold(gv)

    def fold(self, g):
        """Sums the heads of a group and cuts off the past."""
        g = g.reshape(*g.shape[:-3], g.shape[-3] // self.groups, self.groups, *g.shape[-2:]).sum(axis=-3)
        return g[..., self.past:, :]


def reduce_to(g, x):
    """The gradient of what was broadcast: summed over the axes that x has not, or has as one."""
    g = g.sum(axis=tuple(range(g.ndim - x.ndim)))
    ones = tuple(a for a in range(x.ndim) if x.shape[a] == 1)
    return g.sum(axis=ones, keepdims=True).astype(x.dtype)


class MultiHeadAttention:
    def __init__(self, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, options):
        self.shapes = {"q": w_q.shape, "k": w_k.shape, "v": w_v.shape, "o": w_o.shape}
        row = lambda b: None if b is None else b.reshape(-1)  # noqa: E731
        self.w = {"q": flatten(w_q), "k": flatten(w_k), "v": flatten(w_v)}
        self.b = {"q": row(b_q), "k": row(b_k), "v": row(b_v), "o": b_o}
        self.out = Linear(w_o.reshape(-1, w_o.shape[-1]), b_o)
        self.attention = Attention(options)

    def forward(self, query, key, value):
        same = query.shape == key.shape == value.shape and np.array_equal(query, key) and np.array_equal(query, value)
        if same:
            biases = [np.zeros(self.w[n].shape[1], query.dtype) if self.b[n] is None else self.b[n] for n in "qkv"]
            self.packed = Linear(np.concatenate([self.w[n] for n in "qkv"], axis=1), np.concatenate(biases))
            cuts = np.cumsum([self.w[n].shape[1] for n in "qk"])
            q, k, v = np.split(self.packed.forward(query), cuts, axis=-1)
        else:
            self.packed = None
            self.linear = {n: Linear(self.w[n], self.b[n]) for n in "qkv"}
            q, k, v = (self.linear[n].forward(x) for n, x in zip("qkv", (query, key, value)))
        q, k, v = (split_heads(x, self.shapes[n][0]) for n, x in zip("qkv", (q, k, v)))
        return self.out.forward(merge_heads(self.attention.forward(q, k, v)))

    def backward(self, grad_output, grad_lse):
        gz = split_heads(self.out.backward(grad_output), self.shapes["o"][0])
        g = dict(zip("qkv", (merge_heads(x) for x in self.attention.backward(gz, grad_lse))))
        if self.packed is None:
            gx = {n: self.linear[n].backward(g[n]) for n in "qkv"}
            gw = {n: self.linear[n].gw for n in "qkv"}
            gb = {n: self.linear[n].gb for n in "qkv"}
        else:
            self.packed.backward(np.concatenate([g[n] for n in "qkv"], axis=-1))
            cuts = np.cumsum([self.w[n].shape[1] for n in "qk"])
            gw = dict(zip("qkv", np.split(self.packed.gw, cuts, axis=1)))
            gb = dict(zip("qkv", np.split(self.packed.gb, cuts)))
            gx = {n: g[n] @ self.w[n].T for n in "qkv"}
        grads = {"query": gx["q"], "key": gx["k"], "value": gx["v"], "w_o": self.out.gw.reshape(self.shapes["o"])}
        for n in "qkv":
            grads["w_" + n] = unflatten(gw[n], self.shapes[n])
            if self.b[n] is not None:
                grads["b_" + n] = gb[n].reshape(self.shapes[n][0], self.shapes[n][2])
        if self.out.b is not None:
            grads["b_o"] = self.out.gb
        return grads | self.attention.grads


def results_of(output, attention, options, return_weights, return_lse):
    results = {"output": output}
    if return_weights:
        results["weights"] = attention.p
    if return_lse:
        results["lse"] = attention.lse
    if options["past_key"] is not None:
        results["present_key"], results["present_value"] = attention.present
    return results


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None, softcap=None,
    sinks=None, past_key=None, past_value=None, return_weights=False, return_lse=False,
):
    options = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, scale=scale,
                   softcap=softcap, sinks=sinks, past_key=past_key, past_value=past_value)
    attention = Attention(options)
    return results_of(attention.forward(query, key, value), attention, options, return_weights, return_lse)


@np.errstate(all="ignore")
def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None,
    softcap=None, sinks=None, past_key=None, past_value=None, grad_lse=None,
):
    attention = Attention(dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths,
                               scale=scale, softcap=softcap, sinks=sinks, past_key=past_key, past_value=past_value))
    attention.forward(query, key, value)
    gq, gk, gv = attention.backward(grad_output, grad_lse)
    return {"query": gq, "key": gk, "value": gv} | attention.grads


@np.errstate(all="ignore")
def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, kv_lengths=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    return_weights=False, return_lse=False,
):
    options = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, scale=scale,
                   softcap=softcap, sinks=sinks, past_key=past_key, past_value=past_value)
    layer = MultiHeadAttention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, options)
    return results_of(layer.forward(query, key, value), layer.attention, options, return_weights, return_lse)


@np.errstate(all="ignore")
def multi_head_attention_vjp(
    query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, kv_lengths=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    grad_lse=None,
):
    options = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, scale=scale,
                   softcap=softcap, sinks=sinks, past_key=past_key, past_value=past_value)
    layer = MultiHeadAttention(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, options)
    layer.forward(query, key, value)
    return layer.backward(grad_output, grad_lse)
