"""The gradients of one call in plain float64: the magnitudes that their bounds are made of."""

from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.normal_form import Array, Problem, finite


@dataclass(frozen=True)
class Backward:
    """Intermediate gradients by query head; key heads are repeated, and hold the past."""

    head: Array  # [B, H, rows, d_v], gradient of a head's output
    products: Array  # [B, H, rows, kv_len], dP
    delta: Array  # [B, H, rows, 1], sum P dP
    of_lse: Array  # [B, H, rows, 1], the cotangent of the lse; zero without one, or where a row has no lse
    logits: Array  # [B, H, rows, kv_len], P (dP - Delta + of_lse)
    sinks: Array  # [B, H, rows], the same of the sink; zero without one
    sink_sizes: Array  # [B, H, rows], the sizes of what that is the sum of
    slope: Array  # [B, H, rows, kv_len], 1 - tanh^2
    scores: Array  # [B, H, rows, kv_len], slope * logits
    query: Array  # [B, H, rows, d_k]
    key: Array  # [B, H, kv_len, d_k]
    value: Array  # [B, H, kv_len, d_v]


def backward(problem: Problem, a: Approximation) -> Backward:
    """Everything in float64; what is masked counts as zero."""
    query, key, value = finite(a.query), finite(a.key), finite(a.value)
    cotangent = finite(problem.inputs["grad_output"])
    head = cotangent[:, None] @ problem.inputs["w_o"].swapaxes(-1, -2) if problem.layer else cotangent
    products = np.where(problem.visible, head @ value.swapaxes(-1, -2), 0.0)
    delta = (a.weights * products).sum(axis=-1, keepdims=True)
    counted = np.isfinite(a.lse)
    of_lse = np.where(counted, finite(problem.inputs.get("grad_lse", np.zeros(a.lse.shape))), 0.0)[..., None]
    logits = a.weights * (products - delta + of_lse)
    sink, sizes = np.zeros(a.lse.shape), np.zeros(a.lse.shape)
    if a.sinks is not None:
        fall = np.where(counted, a.sinks[:, None] - np.where(counted, a.lse, 0.0), -np.inf)
        sink = -np.exp(fall) * (delta - of_lse)[..., 0]
        sizes = np.exp(fall) * (np.abs(delta) + np.abs(of_lse))[..., 0]
    slope = np.ones_like(logits)
    if problem.softcap is not None:
        with np.errstate(over="ignore"):  # 1 / cosh^2 of it is zero
            slope = np.cosh(problem.multiplier * finite(a.raw) / problem.softcap) ** -2.0
    scores = slope * logits
    return Backward(
        head=head,
        products=products,
        delta=delta,
        of_lse=of_lse,
        logits=logits,
        sinks=sink,
        sink_sizes=sizes,
        slope=slope,
        scores=scores,
        query=problem.multiplier * scores @ key,
        key=problem.multiplier * scores.swapaxes(-1, -2) @ query,
        value=a.weights.swapaxes(-1, -2) @ head,
    )
