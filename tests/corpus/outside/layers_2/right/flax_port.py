"""A port of a Flax attention layer to NumPy: kernels (d_in, heads, width), einsums over '...thd', masks combined, gradients by hand."""
import functools

import numpy as np

name, version = "flax-port", "0.3"
dtypes = ("float64", "float32")
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "cache", "gqa",
    "return_weights", "return_lse", "value_dim", "broadcast", "empty", "grad_lse",
}


def _kernel(w):
    """(heads, d_in, width) as Flax keeps it: (d_in, heads, width)."""
    return np.swapaxes(w, 0, 1)


def dense_general(x, kernel, bias):
    y = np.einsum("...td,dhk->...thk", x, kernel, optimize=True)
    return y if bias is None else y + bias


def combine_masks(*masks):
    masks = [m for m in masks if m is not None]
    return functools.reduce(np.logical_and, masks) if masks else None


def make_causal_mask(q_len, kv_len, offset):
    """(..., 1, q_len, kv_len)"""
    place = np.arange(q_len)[:, None] + offset[..., None, None, None]
    return np.arange(kv_len) <= place


def make_window_mask(q_len, kv_len, offset, window):
    left, right = window
    distance = np.arange(q_len)[:, None] + offset[..., None, None, None] - np.arange(kv_len)
    seen = np.ones(distance.shape, dtype=bool)
    if left is not None:
        seen &= distance <= left
    if right is not None:
        seen &= -distance <= right
    return seen


def make_length_mask(kv_len, lengths):
    return np.arange(kv_len) < lengths[..., None, None, None]


def build_mask(batch, q_len, kv_len, mask, attn_bias, is_causal, q_offset, window, kv_lengths):
    offset = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch)
    return combine_masks(
        np.ones((1, q_len, kv_len), dtype=bool),
        make_causal_mask(q_len, kv_len, offset) if is_causal else None,
        None if window is None else make_window_mask(q_len, kv_len, offset, window),
        None if kv_lengths is None else make_length_mask(kv_len, np.asarray(kv_lengths)),
        mask,
        None if attn_bias is None else attn_bias != -np.inf,
    )


def _groups(x, kv_heads):
    """(..., t, H, d) to (..., t, G, H // G, d)."""
    *lead, heads, width = x.shape
    return x.reshape(*lead, kv_heads, heads // kv_heads, width)


def dot_product_attention_weights(q, k, seen, bias, scale, softcap, sinks):
    """Weights (..., H, q, k), log-sum-exp (..., H, q), weight of the sink, and tanh of the softcap."""
    kv_heads, heads = k.shape[-2], q.shape[-2]
    x = np.einsum("...qgrd,...kgd->...grqk", _groups(q, kv_heads), k, optimize=True)
    x = x.reshape(x.shape[:-4] + (heads,) + x.shape[-2:]) * scale
    bent = None
    if softcap is not None:
        bent = np.tanh(x / softcap)
        x = softcap * bent
    if bias is not None:
        x = x + bias
    seen = np.broadcast_to(seen, x.shape)
    x = np.where(seen, x, -np.inf)
    empty = ~seen.any(axis=-1, keepdims=True)
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    top = np.where(empty & (top == -np.inf), 0, top)
    terms = np.where(seen, np.exp(x - top), 0)
    rest = 0 if sinks is None else np.exp(sinks[:, None, None] - top)
    total = terms.sum(axis=-1, keepdims=True) + rest
    weights = np.where(empty, 0, terms / total)
    lse = (top + np.log(total))[..., 0]
    sink_weight = None if sinks is None else (rest / total)[..., 0]
    return weights, lse, sink_weight, bent, empty[..., 0]


def combine_values(weights, v):
    kv_heads = v.shape[-2]
    *lead, heads, q_len, kv_len = weights.shape
    grouped = weights.reshape(*lead, kv_heads, heads // kv_heads, q_len, kv_len)
    out = np.einsum("...grqk,...kgd->...qgrd", grouped, v, optimize=True)
    return out.reshape(*lead, q_len, heads, v.shape[-1])


def _zero_padding(x, kv_lengths):
    """Zeros in slots that were not written; x (..., t, heads, width)."""
    if kv_lengths is None:
        return x
    written = np.arange(x.shape[-3]) < np.asarray(kv_lengths)[..., None]
    return np.where(written[..., None, None], x, 0)


class _Call:
    """One forward pass on projected heads (..., t, heads, width), with what its gradient needs."""

    def __init__(self, q, k, v, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
                 kv_lengths=None, scale=None, softcap=None, sinks=None):
        dtype = q.dtype
        batch, q_len, kv_len = q.shape[:-3], q.shape[-3], k.shape[-3]
        self.scale = dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
        self.softcap, self.sinks, self.attn_bias = softcap, sinks, attn_bias
        bias = None if attn_bias is None else attn_bias.astype(dtype)
        self.q, self.k, self.v = q, _zero_padding(k, kv_lengths), _zero_padding(v, kv_lengths)
        self.seen = build_mask(batch, q_len, kv_len, mask, attn_bias, is_causal, q_offset, window, kv_lengths)
        self.weights, self.lse, self.sink_weight, self.bent, self.empty = dot_product_attention_weights(
            self.q, self.k, self.seen, bias, self.scale, softcap, sinks
        )
        self.output = combine_values(self.weights, self.v)

    def backward(self, grad_output, grad_lse):
        """Gradients of q, k, v (with the past), and by name of attn_bias and sinks; grad_output (..., q, H, e)."""
        q, k, v, weights = self.q, self.k, self.v, self.weights
        kv_heads, heads = k.shape[-2], q.shape[-2]
        lead, (q_len, kv_len) = weights.shape[:-3], weights.shape[-2:]
        shape = lead + (kv_heads, heads // kv_heads, q_len, kv_len)
        g = _groups(grad_output, kv_heads)
        d_weights = np.einsum("...qgrd,...kgd->...grqk", g, v, optimize=True).reshape(weights.shape)
        delta = (weights * d_weights).sum(axis=-1)
        inner = delta if grad_lse is None else delta - np.where(self.empty, 0, grad_lse)
        d_logits = np.where(weights == 0, 0, weights * (d_weights - inner[..., None]))
        d_x = d_logits if self.bent is None else d_logits * (1 - self.bent ** 2)
        d_x = d_x.reshape(shape)
        d_q = np.einsum("...grqk,...kgd->...qgrd", d_x, k, optimize=True).reshape(q.shape) * self.scale
        d_k = np.einsum("...grqk,...qgrd->...kgd", d_x, _groups(q, kv_heads), optimize=True) * self.scale
        d_v = np.einsum("...grqk,...qgrd->...kgd", weights.reshape(shape), g, optimize=True)
        named = {}
        if self.attn_bias is not None:
            named["attn_bias"] = _sum_to(d_logits, self.attn_bias.shape).astype(self.attn_bias.dtype)
        if self.sinks is not None:
            per_row = np.where(self.empty, 0, -self.sink_weight * inner)
            if grad_lse is not None:
                lost = np.where(self.empty & (self.sinks[:, None] != -np.inf), grad_lse, 0)
                per_row = per_row + lost
            named["sinks"] = np.moveaxis(per_row, -2, 0).reshape(heads, -1).sum(axis=1).astype(self.sinks.dtype)
        return d_q, d_k, d_v, named


def _sum_to(x, shape):
    extra = x.ndim - len(shape)
    x = x.sum(axis=tuple(range(extra)))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1)
    return x.sum(axis=axes, keepdims=True) if axes else x


def _bthd(x):
    return np.swapaxes(x, -2, -3)


def _with_past(x, past):
    return x if past is None else np.concatenate([_bthd(past), x], axis=-3)


def _results(call, k, v, past_key, return_weights, return_lse):
    results = {}
    if past_key is not None:
        results["present_key"] = np.ascontiguousarray(_bthd(k))
        results["present_value"] = np.ascontiguousarray(_bthd(v))
    if return_weights:
        results["weights"] = call.weights
    if return_lse:
        results["lse"] = call.lse
    return results


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, past_key=None, past_value=None, return_weights=False, return_lse=False,
):
    k, v = _with_past(_bthd(key), past_key), _with_past(_bthd(value), past_value)
    call = _Call(
        _bthd(query), k, v, mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window,
        kv_lengths=kv_lengths, scale=scale, softcap=softcap, sinks=sinks,
    )
    return _results(call, k, v, past_key, return_weights, return_lse) | {"output": np.ascontiguousarray(_bthd(call.output))}


@np.errstate(all="ignore")
def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None, grad_lse=None,
):
    past = 0 if past_key is None else past_key.shape[-2]
    call = _Call(
        _bthd(query), _with_past(_bthd(key), past_key), _with_past(_bthd(value), past_value), mask=mask,
        attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths, scale=scale,
        softcap=softcap, sinks=sinks,
    )
    d_q, d_k, d_v, named = call.backward(_bthd(grad_output), grad_lse)
    return {"query": _bthd(d_q), "key": _bthd(d_k[..., past:, :, :]), "value": _bthd(d_v[..., past:, :, :])} | named


def _project(query, key, value, w_q, w_k, w_v, b_q, b_k, b_v):
    return (
        dense_general(query, _kernel(w_q), b_q),
        dense_general(key, _kernel(w_k), b_k),
        dense_general(value, _kernel(w_v), b_v),
    )


@np.errstate(all="ignore")
def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, scale=None, softcap=None, sinks=None, past_key=None,
    past_value=None, return_weights=False, return_lse=False,
):
    q, k, v = _project(query, key, value, w_q, w_k, w_v, b_q, b_k, b_v)
    k, v = _with_past(k, past_key), _with_past(v, past_value)
    call = _Call(
        q, k, v, mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window,
        kv_lengths=kv_lengths, scale=scale, softcap=softcap, sinks=sinks,
    )
    output = np.einsum("...qhe,heo->...qo", call.output, w_o, optimize=True)
    if b_o is not None:
        output = output + b_o
    return _results(call, k, v, past_key, return_weights, return_lse) | {"output": output}


def _unproject(d_heads, x, w, b):
    """Gradients of x, w and b through one projection."""
    d_x = np.einsum("...thk,hdk->...td", d_heads, w, optimize=True)
    d_w = np.einsum("ntd,nthk->hdk", x.reshape(-1, *x.shape[-2:]) if x.size else np.zeros((1, 1, x.shape[-1]), x.dtype),
                    d_heads.reshape(-1, *d_heads.shape[-3:]) if x.size else np.zeros((1, 1, *d_heads.shape[-2:]), x.dtype),
                    optimize=True)
    d_b = None if b is None else d_heads.reshape(-1, *b.shape).sum(axis=0) if d_heads.size else np.zeros_like(b)
    return d_x, d_w, d_b


@np.errstate(all="ignore")
def multi_head_attention_vjp(
    query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None,
    attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None, scale=None, softcap=None, sinks=None,
    past_key=None, past_value=None, grad_lse=None,
):
    past = 0 if past_key is None else past_key.shape[-2]
    q, k, v = _project(query, key, value, w_q, w_k, w_v, b_q, b_k, b_v)
    call = _Call(
        q, _with_past(k, past_key), _with_past(v, past_value), mask=mask, attn_bias=attn_bias, is_causal=is_causal,
        q_offset=q_offset, window=window, kv_lengths=kv_lengths, scale=scale, softcap=softcap, sinks=sinks,
    )
    d_heads = np.einsum("...qo,heo->...qhe", grad_output, w_o, optimize=True)
    d_q, d_k, d_v, named = call.backward(d_heads, grad_lse)
    d_k, d_v = d_k[..., past:, :, :], d_v[..., past:, :, :]
    grads = dict(named)
    if call.output.size:
        grads["w_o"] = np.einsum(
            "nqhe,nqo->heo", call.output.reshape(-1, *call.output.shape[-3:]),
            grad_output.reshape(-1, *grad_output.shape[-2:]), optimize=True,
        )
    else:
        grads["w_o"] = np.zeros_like(w_o)
    if b_o is not None:
        grads["b_o"] = grad_output.reshape(-1, b_o.shape[0]).sum(axis=0)
    for name, d_head, x, w, b in (("q", d_q, query, w_q, b_q), ("k", d_k, key, w_k, b_k), ("v", d_v, value, w_v, b_v)):
        if name != "q" and kv_lengths is not None:
            new = np.arange(past, past + x.shape[-2]) < np.asarray(kv_lengths)[..., None]
            x = np.where(new[..., None], x, 0)
        d_x, grads["w_" + name], d_b = _unproject(d_head, x, w, b)
        grads[{"q": "query", "k": "key", "v": "value"}[name]] = d_x
        if b is not None:
            grads["b_" + name] = d_b
    return grads
