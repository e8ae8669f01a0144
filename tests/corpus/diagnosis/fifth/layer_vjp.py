"""A layer that keeps what its backward pass needs, in the manner of a small framework."""

import math

import numpy as np


def flat(x, tail):
    """The batch axes made one."""
    return x.reshape(math.prod(x.shape[:-tail]), *x.shape[-tail:])


class Projection:
    """(..., n, d_in) -> (..., heads, n, d) by (heads, d_in, d)."""

    def __init__(self, w, b):
        self.w = w.astype(np.float64)
        self.b = None if b is None else b.astype(np.float64)

    def forward(self, x):
        self.x = x.astype(np.float64)
        y = np.einsum("...nd,hde->...hne", self.x, self.w)
        return y if self.b is None else y + self.b[:, None, :]

    def backward(self, dy):
        flat_x, flat_dy = flat(self.x, 2), flat(dy, 3)
        self.dw = np.einsum("bnd,bhne->hde", flat_x, flat_dy)
        self.db = flat_dy.sum(axis=(0, 2))
        return np.einsum("...hne,hde->...nd", dy, self.w)


class Core:
    def __init__(self, rep, mask, bias, is_causal, q_offset, window, scale, softcap):
        self.rep, self.mask, self.bias, self.is_causal = rep, mask, bias, is_causal
        self.q_offset, self.window, self.scale, self.softcap = q_offset, window, scale, softcap

    def visible(self, shape):
        ok = np.ones(shape, dtype=bool)
        if self.mask is not None:
            ok = ok & self.mask
        if self.bias is not None:
            ok = ok & (self.bias != -np.inf)
        place = np.arange(shape[-2])[:, None]
        if self.q_offset is not None:
            place = place + np.asarray(self.q_offset)[..., None, None, None]
        distance = np.arange(shape[-1]) - place
        if self.is_causal:
            ok = ok & (distance <= 0)
        if self.window is not None:
            left, right = self.window
            if left is not None:
                ok = ok & (distance >= -left)
            if right is not None:
                ok = ok & (distance <= right)
        return ok

    def forward(self, q, k, v):
        self.q = q
        self.k = np.repeat(k, self.rep, axis=-3)
        self.v = np.repeat(v, self.rep, axis=-3)
        if self.scale is None:
            self.scale = 1 / np.sqrt(q.shape[-1])
        s = np.einsum("...id,...jd->...ij", self.q, self.k) * self.scale
        if self.softcap is not None:
            self.t = np.tanh(s / self.softcap)
            s = self.t * self.softcap
        if self.bias is not None:
            s = s + self.bias
        ok = self.visible(s.shape)
        s = np.where(ok, s, -np.inf)
        some = ok.any(axis=-1, keepdims=True)
        top = np.where(some, s.max(axis=-1, keepdims=True, initial=-np.inf), 0)
        e = np.where(ok, np.exp(s - top), 0)
        self.p = e / np.where(some, e.sum(axis=-1, keepdims=True), 1)
        return self.p @ self.v

    def fold(self, x):
        return x.reshape(*x.shape[:-3], x.shape[-3] // self.rep, self.rep, *x.shape[-2:]).sum(axis=-3)

    def backward(self, dz):
        dv = np.einsum("...ij,...ie->...je", self.p, dz)
        dp = np.einsum("...ie,...je->...ij", dz, self.v)
        dl = self.p * (dp - np.sum(dp * self.p, axis=-1, keepdims=True))
        if self.bias is not None:
            d = dl.sum(axis=tuple(range(dl.ndim - self.bias.ndim)))
            ones = tuple(n for n in range(d.ndim) if self.bias.shape[n] == 1)
            self.dbias = d.sum(axis=ones, keepdims=True)
        if self.softcap is not None:
            dl = dl * (1 - self.t**2)
        dl = dl * self.scale
        dq = np.einsum("...ij,...jd->...id", dl, self.k)
        dk = np.einsum("...ij,...id->...jd", dl, self.q)
        return dq, self.fold(dk), self.fold(dv)


class Layer:
    def __init__(self, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, **options):
        self.q, self.k, self.v = Projection(w_q, b_q), Projection(w_k, b_k), Projection(w_v, b_v)
        self.core = Core(w_q.shape[0] // w_k.shape[0], **options)
        self.w_o = w_o.astype(np.float64)
        self.b_o = None if b_o is None else b_o.astype(np.float64)

    def forward(self, query, key, value):
        self.z = self.core.forward(self.q.forward(query), self.k.forward(key), self.v.forward(value))
        y = np.einsum("...hne,heo->...no", self.z, self.w_o)
        return y if self.b_o is None else y + self.b_o

    def backward(self, dy):
        dz = np.einsum("...no,heo->...hne", dy, self.w_o)
        flat_dy, flat_z = flat(dy, 2), flat(self.z, 3)
        self.dw_o = np.einsum("bhne,bno->heo", flat_z, flat_dy)
        self.db_o = flat_dy.sum(axis=(0, 1))
        dq, dk, dv = self.core.backward(dz)
        return self.q.backward(dq), self.k.backward(dk), self.v.backward(dv)


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
                         attn_bias=None, is_causal=False, q_offset=None, window=None, scale=None, softcap=None):
    layer = Layer(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask=mask, bias=attn_bias, is_causal=is_causal,
                  q_offset=q_offset, window=window, scale=scale, softcap=softcap)
    with np.errstate(all="ignore"):
        return layer.forward(query, key, value).astype(query.dtype)


def multi_head_attention_vjp(query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                             b_o=None, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
                             scale=None, softcap=None):
    layer = Layer(w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask=mask, bias=attn_bias, is_causal=is_causal,
                  q_offset=q_offset, window=window, scale=scale, softcap=softcap)
    with np.errstate(all="ignore"):
        layer.forward(query, key, value)
        d_query, d_key, d_value = layer.backward(grad_output.astype(np.float64))
        grads = {"query": d_query, "key": d_key, "value": d_value, "w_q": layer.q.dw, "w_k": layer.k.dw,
                 "w_v": layer.v.dw, "w_o": layer.dw_o}
        for name, given, grad in (("b_q", b_q, layer.q.db), ("b_k", b_k, layer.k.db), ("b_v", b_v, layer.v.db),
                                  ("b_o", b_o, layer.db_o)):
            if given is not None:
                grads[name] = grad
        grads = {name: x.astype(query.dtype) for name, x in grads.items()}
        if attn_bias is not None:
            grads["attn_bias"] = layer.core.dbias.astype(attn_bias.dtype)
    return grads
