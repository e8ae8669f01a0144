"""Both operations in plain NumPy, as small named steps of which a defect replaces one.

Written from spec/ and not from the core, for reading and for being changed: nothing is fast here.
Logits and softmax live in float32, in float64 for float64, as the policy `fused` wants.
"""

from typing import Any

import numpy as np

from conformance.defects.backward import (
    compute_gradients,
    finish_gradients,
    gather,
    grad_bias,
    grad_output_projection,
    grad_projection,
    grad_sinks,
    head_gradient,
    less_lse,
    slope,
)
from conformance.defects.call import Call
from conformance.defects.checks import CHECKS
from conformance.defects.serving.checks import SERVING_CHECKS
from conformance.defects.serving.steps import SERVING_STEPS
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array


def compute(s: Steps, c: Call) -> dict[str, Array]:
    """One call, from arguments to outputs."""
    for check in s.checks:
        check(c)
    c = s.accept(c)
    query = s.project_query(c)
    key, value = s.join(c, s.project_key(c), s.project_value(c))
    heads, weights, lse = s.attend(s, c, query, s.repeat(c, key), s.repeat(c, value))
    outputs: dict[str, Array] = s.finish(c, s.merge(c, heads), weights, lse, key, value)
    return outputs


def project(c: Call, x: Array, w: Any, b: Any) -> Array:
    """Heads [..., heads, length, d] of an input of the layer; as it is without one (PROJ-1, PROJ-2)."""
    if not c.layer:
        return c.widen(x)
    heads = c.widen(x)[..., None, :, :] @ c.widen(w)
    return heads if b is None else heads + c.widen(b)[:, None, :]


def join(c: Call, key: Array, value: Array) -> tuple[Array, Array]:
    """The past, then the new (CACHE-1)."""
    if c.past_key is None:
        return key, value
    return (
        np.concatenate([c.widen(c.past_key), key], axis=-2),
        np.concatenate([c.widen(c.past_value), value], axis=-2),
    )


def attend(s: Steps, c: Call, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Logits, what is visible, softmax, average (ATT-6)."""
    logits = s.bias(c, s.cap(c, s.score(c, query, key, s.scale(c))))
    visible = visibility(s, c)
    weights, lse = s.softmax(s, c, logits, visible)
    return s.average(c, weights, value, visible), weights, lse


def place(c: Call) -> Any:
    """The places of the queries, i + q_offset (MASK-8)."""
    offset = np.asarray(0 if c.q_offset is None else c.q_offset)
    if offset.ndim:
        offset = offset[..., None, None, None]
    return np.arange(c.q_len)[:, None] + offset


def by_window(c: Call, place: Array) -> Any:
    """Both ends included, None is open (MASK-10, MASK-11)."""
    if c.window is None:
        return None
    left, right = c.window
    shown = np.ones(np.broadcast_shapes(place.shape, (c.kv_len,)), dtype=bool)
    if left is not None:
        shown &= c.columns >= place - left
    if right is not None:
        shown &= c.columns <= place + right
    return shown


def by_segments(c: Call) -> Any:
    """Keys of the query's number (MASK-17)."""
    if c.q_segments is None:
        return None
    same: Array = c.q_segments[..., :, None] == c.kv_segments[..., None, :]
    return same[..., None, :, :]


def intersect(c: Call, rules: tuple[Any, ...]) -> Array:
    """What every rule shows (MASK-9)."""
    visible = np.ones(c.logits_shape, dtype=bool)
    for rule in rules:
        if rule is not None:
            visible &= rule
    return visible


def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> tuple[Array, Array]:
    """Weights, and the logarithm of their denominator."""
    peak = s.peak(c, logits, visible)
    raised = s.raised(c, logits, visible, peak)
    total = s.total(c, raised, peak)
    return s.normalise(c, raised, total, visible), s.log(c, total, peak, visible)


def column(c: Call, sinks: Array) -> Array:
    """A number for each head, in front of rows: [H, 1, 1]."""
    return c.widen(sinks)[:, None, None]


def peak(c: Call, logits: Array, visible: Array) -> Any:
    """The largest visible logit or sink of the row; 0 where there is neither (ATT-2, MASK-15)."""
    largest: Any = np.max(np.where(visible, logits, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    if c.sinks is not None:
        largest = np.maximum(largest, column(c, c.sinks))
    none = np.isneginf(largest) & ~visible.any(axis=-1, keepdims=True)
    return np.where(none, c.wide(0), largest).astype(c.wide)


def raised(c: Call, logits: Array, visible: Array, peak: Array) -> Array:
    """Exponentials; a hidden logit is not looked at (MASK-4)."""
    return np.exp(np.where(visible, logits - peak, c.wide(-np.inf)))


def total(c: Call, raised: Array, peak: Array) -> Array:
    """The denominator, with the sink (ATT-12)."""
    summed: Array = raised.sum(axis=-1, keepdims=True)
    return summed if c.sinks is None else summed + np.exp(column(c, c.sinks) - peak)


def normalise(c: Call, raised: Array, total: Array, visible: Array) -> Any:
    """Weights; zero where hidden, so zero throughout an empty row (MASK-3)."""
    return np.where(visible, raised / total, c.wide(0))


def log(c: Call, total: Array, peak: Array, visible: Array) -> Array:
    """The log of the denominator; of an empty row its sink, -inf without one (ATT-14, MASK-16)."""
    found: Array = (np.log(total) + peak)[..., 0]
    return found


def average(c: Call, weights: Array, value: Array, visible: Array) -> Array:
    """Values by their weights; what is not finite reaches those who see it only (ATT-11, MASK-5)."""
    finite = np.isfinite(value)
    heads: Array = weights @ np.where(finite, value, c.wide(0))
    if finite.all():
        return heads
    nan, rise, fall = (
        visible.astype(np.float32) @ kind(value).astype(np.float32) > 0
        for kind in (np.isnan, np.isposinf, np.isneginf)
    )
    heads = np.where(rise, heads + np.inf, heads)
    return np.where(nan, c.wide(np.nan), np.where(fall, heads - np.inf, heads))


def merge(c: Call, heads: Array) -> Array:
    """Concatenated heads times W^O, plus b_o; as they are without a layer (PROJ-3)."""
    if not c.layer:
        return heads
    rows = np.moveaxis(heads, -3, -2).reshape(*c.batch, c.q_len, c.heads * c.d_v)
    output: Array = rows @ c.widen(c.w_o).reshape(c.heads * c.d_v, -1)
    return output if c.b_o is None else output + c.widen(c.b_o)


def finish(c: Call, output: Array, weights: Array, lse: Array, key: Array, value: Array) -> dict[str, Array]:
    """What was asked for, in the dtype of the call; lse as wide as it was computed (DTYPE-1, DTYPE-6)."""
    outputs = {"output": output.astype(c.dtype)}
    if c.return_weights:
        outputs["weights"] = weights.astype(c.dtype)
    if c.return_lse:
        outputs["lse"] = lse.astype(c.wide)
    if c.past_key is not None:
        outputs["present_key"], outputs["present_value"] = key.astype(c.dtype), value.astype(c.dtype)
    return outputs


REFERENCE = Steps(
    checks=CHECKS,
    compute=compute,
    accept=lambda c: c,
    project_query=lambda c: project(c, c.query, c.w_q, c.b_q),
    project_key=lambda c: project(c, c.key, c.w_k, c.b_k),
    project_value=lambda c: project(c, c.value, c.w_v, c.b_v),
    join=join,
    repeat=lambda c, x: np.repeat(x, c.heads // c.kv_heads, axis=-3),
    attend=attend,
    scale=lambda c: c.d_k**-0.5 if c.scale is None else float(c.scale),
    score=lambda c, query, key, scale: (query @ key.swapaxes(-1, -2)) * c.wide(scale),
    cap=lambda c, x: x if c.softcap is None else c.wide(c.softcap) * np.tanh(x / c.wide(c.softcap)),
    bias=lambda c, x: x if c.attn_bias is None else x + c.widen(c.attn_bias),
    place=place,
    by_mask=lambda c: c.mask,
    by_bias=lambda c: None if c.attn_bias is None else ~np.isneginf(c.attn_bias),
    by_causal=lambda c, place: c.columns <= place if c.is_causal else None,
    by_window=by_window,
    by_lengths=lambda c: None if c.kv_lengths is None else c.columns < c.kv_lengths[..., None, None, None],
    by_segments=by_segments,
    intersect=intersect,
    softmax=softmax,
    peak=peak,
    raised=raised,
    total=total,
    normalise=normalise,
    log=log,
    average=average,
    merge=merge,
    finish=finish,
    compute_gradients=compute_gradients,
    head_gradient=head_gradient,
    products=lambda c, gradient, value, visible: np.where(
        visible, gradient @ value.swapaxes(-1, -2), c.wide(0)
    ),
    delta=lambda c, weights, products, gradient, heads: (weights * products).sum(axis=-1, keepdims=True),
    less_lse=less_lse,
    grad_logits=lambda c, weights, products, delta, visible: weights * (products - delta),
    slope=slope,
    grad_scores=lambda c, logits, slope: logits * slope,
    grad_query=lambda c, scores, key, scale: (scores @ key) * c.wide(scale),
    grad_key=lambda c, scores, query, scale: (scores.swapaxes(-1, -2) @ query) * c.wide(scale),
    grad_value=lambda c, weights, gradient: weights.swapaxes(-1, -2) @ gradient,
    gather=gather,
    new=lambda c, x: x[..., c.past :, :],
    grad_bias=grad_bias,
    grad_sinks=grad_sinks,
    grad_projection=grad_projection,
    grad_output_projection=grad_output_projection,
    finish_gradients=finish_gradients,
    serving_checks=SERVING_CHECKS,
    **SERVING_STEPS,
)
