"""The gradients of both operations in plain NumPy, as steps of the reference (spec/gradients.md)."""

from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array

PROJECTIONS = (("query", "w_q", "b_q"), ("key", "w_k", "b_k"), ("value", "w_v", "b_v"))


def compute_gradients(s: Any, c: Call) -> dict[str, Array]:
    """One call, from arguments to gradients; the forward steps are those of the reference."""
    for check in s.checks:
        check(c)
    c = s.accept(c)
    query = s.project_query(c)
    key, value = s.join(c, s.project_key(c), s.project_value(c))
    key, value = s.repeat(c, key), s.repeat(c, value)
    scale, visible = s.scale(c), visibility(s, c)
    scaled = s.score(c, query, key, scale)
    weights, lse = s.softmax(s, c, s.bias(c, s.cap(c, scaled)), visible)
    heads = s.average(c, weights, value, visible)

    gradient = s.head_gradient(c)
    products = s.products(c, gradient, value, visible)
    delta = s.less_lse(c, s.delta(c, weights, products, gradient, heads))
    logits = s.grad_logits(c, weights, products, delta, visible)
    scores = s.grad_scores(c, logits, s.slope(c, scaled))
    found = {
        "query": s.grad_query(c, scores, only_finite(key), scale),
        "key": s.new(c, s.gather(c, s.grad_key(c, scores, of_rows(query, visible), scale))),
        "value": s.new(c, s.gather(c, s.grad_value(c, weights, of_rows(gradient, visible)))),
    }
    if c.layer:
        for name, weight, bias in PROJECTIONS:
            x = only_finite(c.widen(getattr(c, name)))
            found |= s.grad_projection(c, name, x, found[name], weight, bias)
        found |= s.grad_output_projection(c, heads)
    if c.attn_bias is not None:
        found["attn_bias"] = s.grad_bias(c, logits)
    if c.sinks is not None:
        found["sinks"] = s.grad_sinks(c, lse, delta, visible)
    gradients: dict[str, Array] = s.finish_gradients(c, found)
    return gradients


def only_finite(x: Array) -> Array:
    """Zero for what is not finite: a mask hides it, or all from it, and zero times NaN is NaN (GRAD-9)."""
    return np.where(np.isfinite(x), x, x.dtype.type(0))


def of_rows(x: Array, visible: Array) -> Array:
    """Queries or cotangents; in an empty row zero for what is not finite, as above (GRAD-4)."""
    return np.where(visible.any(axis=-1, keepdims=True), x, only_finite(x))


def head_gradient(c: Call) -> Array:
    """What reaches each head: through w_o in the layer (GRAD-10)."""
    gradient = c.widen(c.grad_output)
    if not c.layer:
        return gradient
    through: Array = gradient[..., None, :, :] @ c.widen(c.w_o).swapaxes(-1, -2)
    return through


def less_lse(c: Call, delta: Array) -> Any:
    """Delta less the cotangent of the lse (GRAD-16)."""
    return delta if c.grad_lse is None else delta - c.widen(c.grad_lse)[..., None]


def slope(c: Call, scaled: Array) -> Any:
    """The derivative of the softcap (GRAD-7)."""
    if c.softcap is None:
        return c.wide(1)
    finite = np.where(np.isfinite(scaled), scaled, c.wide(0))
    return 1 - np.tanh(finite / c.wide(c.softcap)) ** 2


def gather(c: Call, x: Array) -> Array:
    """Summed over the query heads that read one key head (GRAD-6)."""
    grouped = x.reshape(*c.batch, c.kv_heads, c.heads // c.kv_heads, *x.shape[-2:])
    summed: Array = grouped.sum(axis=-3)
    return summed


def to_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Summed over the axes that an array of a shape broadcasts over (GRAD-5)."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    ones = tuple(i for i, size in enumerate(shape) if size == 1)
    summed: Array = x.sum(axis=ones, keepdims=True)
    return summed


def grad_bias(c: Call, logits: Array) -> Array:
    """The gradient of the logits, in the shape of the bias."""
    return to_shape(logits, c.attn_bias.shape)


def grad_sinks(c: Call, lse: Array, delta: Array, visible: Array) -> Array:
    """Minus the sink's weight times Delta; an empty row has the cotangent of its lse alone (GRAD-8, GRAD-16)."""
    some = np.isfinite(lse)
    delta = np.where(visible.any(axis=-1, keepdims=True), delta, less_lse(c, np.zeros_like(delta)))
    weight = np.where(some, np.exp(c.widen(c.sinks)[:, None] - np.where(some, lse, c.wide(0))), c.wide(0))
    summed: Array = -(weight * delta[..., 0]).sum(axis=-1)
    return summed.sum(axis=tuple(range(len(c.batch))))


def grad_projection(
    c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str
) -> dict[str, Array]:
    """Through one projection: of its input, its weight and its bias, where that was given (GRAD-10)."""
    w = c.widen(getattr(c, weight))
    over = tuple(range(len(c.batch)))
    found = {
        name: (gradient @ w.swapaxes(-1, -2)).sum(axis=-3),
        weight: (x[..., None, :, :].swapaxes(-1, -2) @ gradient).sum(axis=over),
    }
    if getattr(c, bias) is not None:
        found[bias] = gradient.sum(axis=(*over, -2))
    return found


def grad_output_projection(c: Call, heads: Array) -> dict[str, Array]:
    """The gradients of w_o and b_o; b_o takes every row (GRAD-10, GRAD-11)."""
    gradient = c.widen(c.grad_output)
    over = tuple(range(len(c.batch)))
    found = {"w_o": (heads.swapaxes(-1, -2) @ gradient[..., None, :, :]).sum(axis=over)}
    if c.b_o is not None:
        found["b_o"] = gradient.sum(axis=(*over, -2))
    return found


def finish_gradients(c: Call, gradients: dict[str, Array]) -> dict[str, Array]:
    """Each in the dtype of its argument (GRAD-2)."""
    return {name: x.astype(getattr(c, name).dtype) for name, x in gradients.items()}
