"""A layer written op by op, each op with its backward, and the two passes over them."""
import numpy as np


def linear_forward(x, w, b):
    """x (B, n, i), w (h, i, d), b (h, d) -> (B, h, n, d)"""
    y = np.einsum("bni,hid->bhnd", x, w)
    return y if b is None else y + b[:, None, :]


def linear_backward(dy, x, w):
    dx = np.einsum("bhnd,hid->bni", dy, w)
    dw = np.einsum("bni,bhnd->hid", x, dy)
    db = dy.sum(axis=(0, 2))
    return dx, dw, db


def expand_forward(x, r):
    return np.repeat(x, r, axis=1)


def expand_backward(dy, r):
    b, h, n, d = dy.shape
    return dy.reshape(b, h // r, r, n, d).sum(axis=2)


def softmax_forward(s, keep):
    s = np.where(keep, s, -np.inf)
    live = keep.any(-1, keepdims=True)
    top = np.where(live, s.max(-1, keepdims=True, initial=-np.inf), 0)
    e = np.exp(s - top)
    return e / np.where(live, e.sum(-1, keepdims=True), 1)


def softmax_backward(dp, p):
    return p * (dp - np.sum(dp * p, axis=-1, keepdims=True))


def out_forward(z, w, b):
    """z (B, h, n, d), w (h, d, o) -> (B, n, o)"""
    y = np.einsum("bhnd,hdo->bno", z, w)
    return y if b is None else y + b


def out_backward(dy, z, w):
    dz = np.einsum("bno,hdo->bhnd", dy, w)
    dw = np.einsum("bhnd,bno->hdo", z, dy)
    db = dy.sum(axis=(0, 1))
    return dz, dw, db


class Layer:
    def __init__(self, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o):
        f = lambda x: None if x is None else x.astype(np.float64)
        self.w = {"q": f(w_q), "k": f(w_k), "v": f(w_v), "o": f(w_o)}
        self.b = {"q": f(b_q), "k": f(b_k), "v": f(b_v), "o": f(b_o)}
        self.r = w_q.shape[0] // w_k.shape[0]

    def forward(self, xq, xk, xv, keep_of, bias, scale, past):
        w, b = self.w, self.b
        q = linear_forward(xq, w["q"], b["q"])
        k = linear_forward(xk, w["k"], b["k"])
        v = linear_forward(xv, w["v"], b["v"])
        new = (k, v)
        self.past_len = 0
        if past is not None:
            self.past_len = past[0].shape[2]
            k = np.concatenate([past[0], k], axis=2)
            v = np.concatenate([past[1], v], axis=2)
        ke, ve = expand_forward(k, self.r), expand_forward(v, self.r)
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        s = np.einsum("bhqd,bhkd->bhqk", q, ke) * self.scale
        keep = np.ones(s.shape, bool) & keep_of(s.shape)
        if bias is not None:
            s = s + bias
            keep = keep & (bias != -np.inf)
        p = softmax_forward(s, keep)
        z = np.einsum("bhqk,bhkd->bhqd", p, ve)
        y = out_forward(z, w["o"], b["o"])
        self.saved = xq, xk, xv, q, ke, ve, p, z
        return y, p, new

    def backward(self, dy):
        xq, xk, xv, q, ke, ve, p, z = self.saved
        w, grads = self.w, {}
        dz, grads["w_o"], grads["b_o"] = out_backward(dy, z, w["o"])
        dp = np.einsum("bhqd,bhkd->bhqk", dz, ve)
        dve = np.einsum("bhqk,bhqd->bhkd", p, dz)
        ds = softmax_backward(dp, p)
        grads["attn_bias"] = ds
        ds = ds * self.scale
        dq = np.einsum("bhqk,bhkd->bhqd", ds, ke)
        dke = np.einsum("bhqk,bhqd->bhkd", ds, q)
        dk = expand_backward(dke, self.r)[:, :, self.past_len:]
        dv = expand_backward(dve, self.r)[:, :, self.past_len:]
        grads["query"], grads["w_q"], grads["b_q"] = linear_backward(dq, xq, w["q"])
        grads["key"], grads["w_k"], grads["b_k"] = linear_backward(dk, xk, w["k"])
        grads["value"], grads["w_v"], grads["b_v"] = linear_backward(dv, xv, w["v"])
        return grads


def _keep(batch, mask, is_causal, q_offset):
    def keep_of(shape):
        B, h, n, m = shape
        keep = np.ones((1, 1, n, m), bool)
        if mask is not None:
            given = mask if mask.ndim == 2 else np.broadcast_to(mask, (*batch, *mask.shape[-3:])).reshape(B, *mask.shape[-3:])
            keep = keep & given
        if is_causal:
            offset = np.reshape(0 if q_offset is None else q_offset, (-1, 1, 1, 1))
            keep = keep & (np.arange(m) <= np.arange(n)[:, None] + offset)
        return keep
    return keep_of


def _run(query, key, value, weights, mask, attn_bias, is_causal, q_offset, scale, past_key, past_value):
    batch = query.shape[:-2]
    B = int(np.prod(batch))
    flat = lambda x, rest: x.reshape(B, *x.shape[-rest:]).astype(np.float64)
    past = None if past_key is None else (flat(past_key, 3), flat(past_value, 3))
    bias = attn_bias
    if bias is not None and bias.ndim > 2:
        bias = np.broadcast_to(bias, (*batch, *bias.shape[-3:])).reshape(B, *bias.shape[-3:])
    layer = Layer(*weights)
    result = layer.forward(flat(query, 2), flat(key, 2), flat(value, 2), _keep(batch, mask, is_causal, q_offset),
                           bias, scale, past)
    return layer, batch, result


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
                         attn_bias=None, is_causal=False, q_offset=None, scale=None, past_key=None, past_value=None,
                         return_weights=False):
    _, batch, (y, p, new) = _run(query, key, value, (w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o), mask, attn_bias,
                                 is_causal, q_offset, scale, past_key, past_value)
    shaped = lambda x: x.reshape(*batch, *x.shape[1:]).astype(query.dtype)
    result = {"output": shaped(y)}
    if return_weights:
        result["weights"] = shaped(p)
    if past_key is not None:
        result["present_key"] = np.concatenate([past_key, shaped(new[0])], axis=-2)
        result["present_value"] = np.concatenate([past_value, shaped(new[1])], axis=-2)
    return result


def multi_head_attention_vjp(query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None,
                             b_o=None, mask=None, attn_bias=None, is_causal=False, q_offset=None, scale=None,
                             past_key=None, past_value=None):
    layer, batch, _ = _run(query, key, value, (w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o), mask, attn_bias, is_causal,
                           q_offset, scale, past_key, past_value)
    dy = grad_output.reshape(-1, *grad_output.shape[-2:]) if batch else grad_output[None]
    grads = layer.backward(dy.astype(np.float64))
    given = {"query": query, "key": key, "value": value, "w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o,
             "b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    result = {n: grads[n].reshape(x.shape).astype(x.dtype) for n, x in given.items() if x is not None}
    if attn_bias is not None:
        d = grads["attn_bias"]
        if attn_bias.ndim == 2:
            d = d.sum(axis=(0, 1))
        else:
            d = d.reshape(*batch, *d.shape[1:])
        axes = tuple(i for i, n in enumerate(attn_bias.shape) if n == 1)
        result["attn_bias"] = d.sum(axis=axes, keepdims=True).astype(attn_bias.dtype)
    return result
