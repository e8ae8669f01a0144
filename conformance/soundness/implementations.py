"""The correct implementations: the reference of the bank with other numerics."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.soundness.backward import gradients
from conformance.soundness.softmaxes import LARGEST_BOUND, SOFTMAXES, Rows
from conformance.soundness.style import Roundings, Style
from conformance.vectors.case import Array

STYLES = (
    Style("plain", "fused"),
    Style("exp2", "fused", softmax="base two"),
    *(Style(f"online in blocks of {n}", "fused", softmax="online", block=n) for n in (1, 3, 7, 64)),
    Style("split over keys", "fused", softmax="split", block=5),
    *(Style(f"{name} sums", "fused", logits=name, average=name) for name in ("sequential", "reverse")),
    *(Style(f"{name} sums", "fused", logits=name, average=name) for name in ("pairwise", "compensated")),
    Style("fused multiply-add", "fused", logits="fused", average="fused"),
    Style("einsum", "fused", logits="einsum", average="einsum"),
    Style("query scaled first", "fused", scaled="query"),
    Style("query and key scaled", "fused", scaled="both"),
    Style("bound for maximum", "fused", softmax="below a bound"),
    Style("divided afterwards", "fused", softmax="unnormalised"),
    Style("divided afterwards, sum of rounded", "fused", softmax="sum of rounded"),
    Style("reciprocal afterwards", "fused", softmax="by reciprocal", logits="fused"),
    Style("float64 inside", "fused", float64=True),
    Style("all stored", "eager"),
    Style("all stored, query scaled first", "eager", scaled="query"),
    Style("all stored, query and key scaled", "eager", scaled="both"),
    Style(
        "all stored, reciprocal, loops", "eager", logits="sequential", average="sequential", reciprocal=True
    ),
    Style("all stored, divided afterwards", "eager", softmax="unnormalised"),
    Style("all stored, exp2", "eager", softmax="base two"),
    Style("TF32", "tf32", operand=(11, False)),
    Style("TF32, query scaled first", "tf32", operand=(11, False), scaled="query"),
    Style("TF32 truncated", "tf32t", operand=(11, True)),
    Style("bfloat16 operands", "bf16x1", operand=(8, False), scaled="query"),
    Style("bfloat16 operands, query and key scaled", "bf16x1", operand=(8, False), scaled="both"),
    Style("functions off at random", "fused", off="at random"),
    Style("functions off in waves", "fused", off="in waves"),
    Style("functions off, online", "fused", softmax="online", off="at random"),
    Style("functions off, exp2, divided afterwards", "fused", softmax="base two", off="in waves"),
    Style("all stored, functions off", "eager", off="at random"),
)
"""Of the forward operations."""

BACKWARD_STYLES = (
    Style("weights kept", "fused"),
    Style("weights from the lse", "fused", again=True),
    Style("weights from the lse, Delta from the output", "fused", again=True, delta="output"),
    *(
        Style(
            f"in blocks of {n}, as FlashAttention",
            "fused",
            softmax="online",
            block=n,
            again=True,
            delta="output",
        )
        for n in (3, 64)
    ),
    Style("sequential sums", "fused", logits="sequential", average="sequential"),
    Style(
        "reverse sums, Delta from the output", "fused", logits="reverse", average="reverse", delta="output"
    ),
    Style("compensated sums", "fused", logits="compensated", average="compensated"),
    Style("fused multiply-add", "fused", logits="fused", average="fused", again=True),
    Style("query scaled first", "fused", scaled="query"),
    Style("query and key scaled", "fused", scaled="both", delta="output"),
    Style("exp2", "fused", softmax="base two"),
    Style("products apart", "fused", apart=True),
    Style("heads of a group stored", "fused", heads=True),
    Style(
        "heads of a group stored, in blocks",
        "fused",
        softmax="online",
        again=True,
        delta="output",
        heads=True,
    ),
    Style("float64 inside", "fused", float64=True),
    Style("log-softmax", "fused", softmax="of logarithms"),
    Style("functions off at random", "fused", off="at random", again=True),
    Style("functions off in waves", "fused", off="in waves"),
    Style("all stored", "eager"),
    Style("all stored, Delta from the output", "eager", delta="output"),
    Style("all stored, products apart", "eager", apart=True),
    Style("all stored, query scaled first, loops", "eager", scaled="query", average="sequential"),
    Style("all stored, query and key scaled", "eager", scaled="both"),
    Style("all stored, functions off", "eager", off="at random"),
    Style("TF32", "tf32", operand=(11, False)),
    Style("TF32, Delta from the output", "tf32", operand=(11, False), scaled="query", delta="output"),
    Style("TF32 truncated", "tf32t", operand=(11, True)),
    Style(
        "TF32 truncated, Delta from the output", "tf32t", operand=(11, True), scaled="query", delta="output"
    ),
    Style("bfloat16 operands", "bf16x1", operand=(8, False), scaled="query"),
    Style("bfloat16 operands, query and key scaled", "bf16x1", operand=(8, False), scaled="both"),
    Style("bfloat16 operands, Delta from the output", "bf16x1", operand=(8, False), delta="output"),
)
"""Of the gradients."""


def implementation(style: Style) -> Implementation:
    """A target that computes everything in one style."""
    steps = replace(
        REFERENCE,
        project_query=lambda c: _projected(Roundings(style, c), c.query, c.w_q, c.b_q),
        project_key=lambda c: _projected(Roundings(style, c), c.key, c.w_k, c.b_k),
        project_value=lambda c: _projected(Roundings(style, c), c.value, c.w_v, c.b_v),
        attend=lambda s, c, q, k, v: _attended(s, Roundings(style, c), q, k, v),
        merge=lambda c, heads: _merged(Roundings(style, c), heads),
        compute_gradients=lambda s, c: _gradients(s, Roundings(style, c)),
    )
    return Implementation(steps, style.name)


def _projected(r: Roundings, x: Array, w: Any, b: Any) -> Array:
    x = x.astype(r.wide)
    if not r.call.layer:
        return x
    order = (
        "matmul" if r.style.logits == "pairwise" else r.style.logits
    )  # pairs of a layer's size fill memory
    heads = r.store(r.product(order, x[..., None, :, :], w.astype(r.wide)))
    return heads if b is None else r.store(heads + b.astype(r.wide)[:, None, :])


def _scaled(r: Roundings, scale: float, query: Array, key: Array) -> Array:
    """The scaled products, stored where everything is. [..., H, q_len, kv_len]."""
    wide = r.wide
    key = np.swapaxes(key, -1, -2)
    if r.style.scaled == "product":
        return r.store(r.store(r.product(r.style.logits, query, key)) * wide(scale))
    if r.style.scaled == "query":
        return r.store(r.product(r.style.logits, r.store(query * wide(scale)), key))
    root = wide(np.sqrt(abs(scale)))
    query, key = r.store(query * (root * wide(np.sign(scale)))), r.store(key * root)
    return r.store(r.product(r.style.logits, query, key))


def _rows(s: Steps, r: Roundings, query: Array, key: Array, value: Array) -> tuple[Rows, Any]:
    """The logits with what the softmax needs, and the tanh of the softcap, None without one."""
    c, wide = r.call, r.wide
    query, key, value = (x.astype(wide) for x in (query, key, value))
    scale = s.scale(c)
    visible = visibility(s, c)
    logits, steep = _scaled(r, scale, query, key), None
    if c.softcap is not None:
        steep = r.store(r.function("tanh", r.store(logits / wide(c.softcap))))
        logits = r.store(wide(c.softcap) * steep)
    if c.attn_bias is not None:
        logits = r.store(logits + r.store(c.attn_bias.astype(wide)))
    rows = Rows(
        round=r,
        logits=np.where(visible, logits, wide(-np.inf)),
        visible=visible,
        value=value,
        sink=None if c.sinks is None else c.sinks.astype(wide)[:, None, None],
        bound=_bound(c, scale, query, key),
    )
    return rows, steep


def _attended(s: Steps, r: Roundings, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    rows, _ = _rows(s, r, query, key, value)
    heads, weights, lse = SOFTMAXES[r.style.softmax](rows)
    return r.store(np.where(rows.some, heads, r.wide(0))), weights, lse


def _gradients(s: Steps, r: Roundings) -> dict[str, Array]:
    c = r.call
    for check in s.checks:
        check(c)
    query = s.project_query(c)
    key, value = (s.repeat(c, x) for x in s.join(c, s.project_key(c), s.project_value(c)))
    rows, steep = _rows(s, r, query, key, value)
    found = gradients(rows, SOFTMAXES[r.style.softmax](rows), query, key, s.scale(c), steep)
    finished: dict[str, Array] = s.finish_gradients(c, found)
    return finished


def _bound(c: Call, scale: float, query: Array, key: Array) -> Array | None:
    """|scale| |q| max |k|, where nothing else enters the logits. [..., H, q_len, 1]."""
    if c.attn_bias is not None or c.softcap is not None or c.sinks is not None or not key.size:
        return None
    longest = np.linalg.norm(key, axis=-1).max(axis=-1)[..., None, None]
    bound: Array = (abs(scale) * np.linalg.norm(query, axis=-1, keepdims=True) * longest).astype(query.dtype)
    return bound if bound.size and bound.max() < LARGEST_BOUND else None


def _merged(r: Roundings, heads: Array) -> Array:
    c = r.call
    if not c.layer:
        return heads
    rows = np.moveaxis(heads, -3, -2).reshape(*c.batch, c.q_len, c.heads * c.d_v)
    w_o = c.w_o.astype(r.wide).reshape(c.heads * c.d_v, -1)
    output = r.store(r.operand(rows) @ r.operand(w_o))
    return output if c.b_o is None else output + c.b_o.astype(r.wide)
