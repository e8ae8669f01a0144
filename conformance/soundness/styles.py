"""The correct implementations: the reference of the bank with other numerics."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.reference import REFERENCE, Implementation, Steps
from conformance.defects.visibility import visibility
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
)


def implementation(style: Style) -> Implementation:
    """A target that computes everything in one style."""
    steps = replace(
        REFERENCE,
        project_query=lambda c: _projected(Roundings(style, c), c.query, c.w_q, c.b_q),
        project_key=lambda c: _projected(Roundings(style, c), c.key, c.w_k, c.b_k),
        project_value=lambda c: _projected(Roundings(style, c), c.value, c.w_v, c.b_v),
        attend=lambda s, c, q, k, v: _attended(s, Roundings(style, c), q, k, v),
        merge=lambda c, heads: _merged(Roundings(style, c), heads),
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


def _logits(r: Roundings, scale: float, query: Array, key: Array) -> Array:
    """Scale, softcap and bias, each stored where everything is. [..., H, q_len, kv_len]."""
    c, wide = r.call, r.wide
    key = np.swapaxes(key, -1, -2)
    if r.style.scaled == "product":
        x = r.store(r.store(r.product(r.style.logits, query, key)) * wide(scale))
    elif r.style.scaled == "query":
        x = r.store(r.product(r.style.logits, r.store(query * wide(scale)), key))
    else:
        root = wide(np.sqrt(abs(scale)))
        query, key = r.store(query * (root * wide(np.sign(scale)))), r.store(key * root)
        x = r.store(r.product(r.style.logits, query, key))
    if c.softcap is not None:
        cap = wide(c.softcap)
        x = r.store(cap * r.store(np.tanh(r.store(x / cap))))
    return x if c.attn_bias is None else r.store(x + r.store(c.attn_bias.astype(wide)))


def _attended(s: Steps, r: Roundings, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    c, wide = r.call, r.wide
    query, key, value = (x.astype(wide) for x in (query, key, value))
    scale = s.scale(c)
    visible = visibility(s, c)
    rows = Rows(
        round=r,
        logits=np.where(visible, _logits(r, scale, query, key), wide(-np.inf)),
        visible=visible,
        value=value,
        sink=None if c.sinks is None else c.sinks.astype(wide)[:, None, None],
        bound=_bound(c, scale, query, key),
    )
    heads, weights, lse = SOFTMAXES[r.style.softmax](rows)
    return r.store(np.where(rows.some, heads, wide(0))), weights, lse


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
