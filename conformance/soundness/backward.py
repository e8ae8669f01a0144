"""Gradients in many numerical styles: all of them mean the same (spec/gradients.md)."""

from typing import Any

import numpy as np

from conformance.defects.backward import PROJECTIONS
from conformance.soundness.softmaxes import Result, Rows
from conformance.soundness.style import Roundings
from conformance.vectors.case import Array


def gradients(
    rows: Rows, forward: Result, query: Array, key: Array, scale: float, steep: Array | None
) -> dict[str, Array]:
    """Every gradient by argument name, wide; key has its heads repeated, steep is the tanh of the softcap."""
    r, c = rows.round, rows.round.call
    query, key = query.astype(r.wide), key.astype(r.wide)
    heads, weights, lse = forward
    heads = r.narrow(np.where(rows.some, heads, r.wide(0)))
    if r.style.again:
        weights = np.where(rows.visible, r.function("exp", rows.logits - _finite(lse)[..., None]), r.wide(0))
    weights = r.store(weights)
    upstream = _upstream(r)

    products = r.store(_product(r, upstream, _t(rows.value)))
    if r.style.delta == "output":
        delta = (upstream * heads).sum(axis=-1, keepdims=True)
    else:
        delta = r.store(r.store(weights * products).sum(axis=-1, keepdims=True))
    of_lse = None if c.grad_lse is None else r.store(c.grad_lse.astype(r.wide)[..., None])
    if of_lse is not None and not r.style.apart:
        delta = r.store(delta - of_lse)
    if r.style.apart:
        logits = r.store(r.store(weights * products) - r.store(weights * delta))
        if of_lse is not None:
            logits = r.store(logits + r.store(weights * of_lse))
            delta = r.store(delta - of_lse)
    else:
        logits = r.store(weights * r.store(products - delta))
    scores = logits if steep is None else r.store(logits * r.store(1 - r.store(steep * steep)))

    found = _operands(r, scores, weights, upstream, query, key, scale)
    if c.layer:
        for name, weight, bias in PROJECTIONS:
            found |= _projection(r, name, found[name], weight, bias)
        found |= _output_projection(r, heads)
    if c.attn_bias is not None:
        found["attn_bias"] = _to_shape(r, logits, c.attn_bias.shape)
    if rows.sink is not None:
        share = r.store(r.function("exp", rows.sink - _finite(lse)[..., None]))  # [..., H, q_len, 1]
        some = rows.some if of_lse is None else rows.counted
        summed = np.where(some, r.store(share * delta), r.wide(0))[..., 0].sum(axis=-1)
        found["sinks"] = -summed.sum(axis=tuple(range(len(c.batch))))
    return found


def _t(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _finite(lse: Array) -> Array:
    return np.where(np.isfinite(lse), lse, lse.dtype.type(0))


def _product(r: Roundings, a: Array, b: Array) -> Array:
    return r.product(r.style.average, a, b)


def _upstream(r: Roundings) -> Array:
    """The gradient of each head. [..., H, q_len, d_v]."""
    gradient = r.call.grad_output.astype(r.wide)
    if not r.call.layer:
        return np.asarray(gradient)
    return r.narrow(_product(r, gradient[..., None, :, :], _t(r.call.w_o.astype(r.wide))))


def _operands(
    r: Roundings, scores: Array, weights: Array, upstream: Array, query: Array, key: Array, scale: float
) -> dict[str, Array]:
    """The gradients of the projected query, key and value; the scale where the logits had it."""
    factor = r.wide(scale)
    if r.style.scaled == "product":
        scores, before, after = r.store(scores * factor), r.wide(1), r.wide(1)
    elif r.style.scaled == "query":
        before, after = factor, r.wide(1)
    else:
        after = np.sqrt(np.abs(factor))
        before = after * np.sign(factor)
    query, key = r.store(query * before), r.store(key * after)
    rounded, narrow = r.narrow(scores), r.narrow(weights)
    return {
        "query": r.store(_in_blocks(r, rounded, key)) * before,
        "key": _gathered(r, r.store(_in_blocks(r, _t(rounded), query)) * after),
        "value": _gathered(r, _in_blocks(r, _t(narrow), upstream)),
    }


def _in_blocks(r: Roundings, a: Array, b: Array) -> Array:
    """A product whose sum goes in blocks where the softmax does."""
    if r.style.softmax != "online":
        return _product(r, a, b)
    parts = [slice(i, i + r.style.block) for i in range(0, a.shape[-1], r.style.block)]
    total = np.zeros((*a.shape[:-1], b.shape[-1]), r.wide)
    for part in parts:
        total = total + _product(r, a[..., part], b[..., part, :])
    return total


def _gathered(r: Roundings, x: Array) -> Array:
    """Summed over the query heads of a group, without the past."""
    c = r.call
    x = r.narrow(x) if r.style.heads else r.store(x)
    grouped = x.reshape(*c.batch, c.kv_heads, c.heads // c.kv_heads, *x.shape[-2:])
    return np.asarray(grouped.sum(axis=-3)[..., c.past :, :])


def _to_shape(r: Roundings, x: Array, shape: tuple[int, ...]) -> Array:
    """Summed over the axes that an array of a shape broadcasts over, one after the other."""
    wanted = (1,) * (x.ndim - len(shape)) + shape
    for axis, (size, want) in enumerate(zip(x.shape, wanted, strict=True)):
        if size != want:
            x = r.store(x.sum(axis=axis, keepdims=True))
    return x.reshape(shape)


def _projection(r: Roundings, name: str, gradient: Array, weight: str, bias: str) -> dict[str, Array]:
    c = r.call
    over = tuple(range(len(c.batch)))
    x, w = (getattr(c, n).astype(r.wide) for n in (name, weight))
    gradient = r.narrow(gradient)
    found: dict[str, Any] = {
        name: r.store(_product(r, gradient, _t(w))).sum(axis=-3),
        weight: r.store(_product(r, _t(x)[..., None, :, :], gradient)).sum(axis=over),
    }
    if getattr(c, bias) is not None:
        found[bias] = r.store(gradient.sum(axis=-2)).sum(axis=over)
    return found


def _output_projection(r: Roundings, heads: Array) -> dict[str, Array]:
    c = r.call
    gradient = c.grad_output.astype(r.wide)
    over = tuple(range(len(c.batch)))
    found = {"w_o": r.store(_product(r, _t(heads), gradient[..., None, :, :])).sum(axis=over)}
    if c.b_o is not None:
        found["b_o"] = r.store(gradient.sum(axis=-2)).sum(axis=over)
    return found
