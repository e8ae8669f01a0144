"""Every gradient of a call in numbers that know their own error: the formulas of spec/gradients.md."""

import math
from typing import Any

import numpy as np

from conformance.oracle.forward import Bounded, Kind, Number, attend
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.names import has_structural_zero
from conformance.vectors.generate.normal_form import Array, Problem, finite


def gradients(
    problem: Problem, a: Approximation, bias_shape: tuple[int, ...], wanted: tuple[str, ...], kind: Kind
) -> dict[str, Bounded]:
    """Every wanted gradient, batch axes flattened."""
    found = _gradients(problem, a, bias_shape, kind)
    pairs = {}
    for name in wanted:
        high, low, error = found[name].parts()
        if has_structural_zero(problem, name, bias_shape):
            high, low, error = (np.zeros_like(x) for x in (high, low, error))
        pairs[name] = high, low, error
    return pairs


def _gradients(
    problem: Problem, a: Approximation, bias_shape: tuple[int, ...], kind: Kind
) -> dict[str, Number]:
    heads = attend(problem, a, kind)
    cotangent = kind.of(finite(problem.inputs["grad_output"]))
    head = cotangent
    if problem.layer:
        head = cotangent.map(lambda x: x[:, None]) @ kind.of(problem.inputs["w_o"].swapaxes(-1, -2))
    weights = heads.exponentials / heads.totals
    products = (head @ _turned(heads.value)).where(problem.visible)
    delta = (weights * products).total(keepdims=True)
    if "grad_lse" in problem.inputs:
        delta = delta - kind.of(
            np.where(np.isfinite(a.lse), finite(problem.inputs["grad_lse"]), 0.0)[..., None]
        )
    logits = weights * (products - delta)
    found: dict[str, Number] = {}
    if heads.sinks is not None:
        found["sinks"] = -(heads.sinks / heads.totals * delta).total((0, 2, 3))
    if problem.has_bias:
        found["attn_bias"] = _to_bias(problem, logits, bias_shape)
    scores = logits
    if heads.fall is not None:
        one, four = (kind.of(np.array(x)) for x in (1.0, 4.0))
        rise = one + heads.fall
        scores = logits * (four * heads.fall / (rise * rise))
    scale = kind.root(problem.d_k) if problem.scale is None else kind.of(np.array(float(problem.scale)))
    new = slice(problem.kv_len - problem.inputs["key"].shape[-2], None)
    by_head = {
        "query": (scores @ heads.key) * scale,
        "key": _grouped(problem, _turned(scores) @ heads.query).map(lambda x: x[:, :, new]) * scale,
        "value": _grouped(problem, _turned(weights) @ head).map(lambda x: x[:, :, new]),
    }
    if not problem.layer:
        return found | by_head
    for name, gradient in by_head.items():
        found |= _projected(problem, name, gradient, kind)
    turned = _turned(_side_by_side(heads.output))
    tokens = math.prod(problem.inputs["grad_output"].shape[:-1])
    found["w_o"] = turned @ cotangent.map(lambda x: x.reshape(tokens, x.shape[-1]))
    found["b_o"] = cotangent.total((0, 1))
    return found


def _turned(x: Number) -> Number:
    return x.map(lambda x: x.swapaxes(-1, -2))


def _side_by_side(x: Number) -> Number:
    """[B, heads, length, d] as [heads, B length, d]."""
    return x.map(lambda x: x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2], x.shape[3]))


def _grouped(problem: Problem, x: Number) -> Number:
    """Summed over the query heads of each group."""
    if problem.group == 1:
        return x
    shape = problem.size, problem.num_kv_heads, problem.group
    return x.map(lambda x: x.reshape(*shape, *x.shape[2:])).total((2,))


def _to_bias(problem: Problem, logits: Number, bias_shape: tuple[int, ...]) -> Number:
    """Summed over the axes that the bias broadcasts over (GRAD-5)."""
    axes = (*problem.batch, problem.num_heads, len(problem.rows), problem.kv_len)
    aligned = (1,) * (len(axes) - len(bias_shape)) + bias_shape
    summed = tuple(i for i, (n, want) in enumerate(zip(axes, aligned, strict=True)) if want == 1 and n != 1)
    whole = logits.map(lambda x: x.reshape(axes))
    return (whole.total(summed) if summed else whole).map(lambda x: x.reshape(bias_shape))


def _projected(problem: Problem, name: str, gradient: Number, kind: Kind) -> dict[str, Number]:
    """The gradients of an operand, its projection and bias (GRAD-10)."""
    weight, bias = f"w_{name[0]}", f"b_{name[0]}"
    w: Array = problem.inputs[weight]  # [heads, width, d]
    heads, width, d = w.shape
    flat: Any = gradient.map(lambda x: x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], heads * d))
    x = finite(problem.inputs[name])
    tokens = math.prod(x.shape[:-1])
    return {
        name: flat @ kind.of(w.swapaxes(1, 2).reshape(heads * d, width)),
        weight: kind.of(x.reshape(tokens, width).T) @ _side_by_side(gradient),
        bias: gradient.total((0, 2)),
    }
