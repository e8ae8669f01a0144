"""What errors of the logits that are too large to be linear add to s of every gradient (spec/bounds.md)."""

from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.bounds.projection_error import operand_of
from conformance.vectors.generate.bounds.softmax import softmax_of
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.backward import Backward
from conformance.vectors.generate.gradients.worst_case import PROJECTIONS, grouped
from conformance.vectors.generate.normal_form import Array, Problem, finite
from conformance.vectors.generate.policies import Policy


@dataclass(frozen=True)
class _Remainders:
    """By query head, squared: rows err on their own. The keys of a row err together in what is a sum over them."""

    logits: Array  # [B, H, rows, kv_len]
    sinks: Array  # [B, H, rows]
    query: Array  # [B, H, rows, d_k]
    key: Array  # [B, H, kv_len, d_k]
    value: Array  # [B, H, kv_len, d_v]
    output: Array  # [B, H, rows, d_v]
    unpredicted: bool  # of some row nothing is predicted that W does not say


def curvature(
    problem: Problem, a: Approximation, d: Backward, policy: Policy, bias_shape: tuple[int, ...]
) -> dict[str, Array] | None:
    """What exp leaves beyond the first derivative, as a sixth of what rule 1 is to let through.

    None where nothing is predicted that W does not say.
    """
    r = _remainders(problem, a, d, policy)
    if r.unpredicted:
        return None
    found = {"query": r.query}
    new = slice(problem.kv_len - problem.inputs["key"].shape[-2], None)
    for name, squares in (("key", r.key), ("value", r.value)):
        found[name] = grouped(problem, squares)[:, :, new]
    if problem.has_bias:
        axes = (*problem.batch, *r.logits.shape[1:])
        aligned = (1,) * (len(axes) - len(bias_shape)) + bias_shape
        summed = tuple(
            i for i, (n, want) in enumerate(zip(axes, aligned, strict=True)) if want == 1 and n != 1
        )
        found["attn_bias"] = r.logits.reshape(axes).sum(axis=summed).reshape(bias_shape)
    if a.sinks is not None:
        found["sinks"] = r.sinks.sum(axis=(0, 2))
    if problem.layer:
        for name, weight, bias in PROJECTIONS:
            x, w, squares = finite(problem.inputs[name]), problem.inputs[weight], found[name]
            found[name] = np.einsum("bhld,hed->ble", np.sqrt(squares), np.abs(w)) ** 2
            found[weight] = np.einsum("ble,bhld->hed", x**2, squares)
            if bias in problem.inputs:
                found[bias] = squares.sum(axis=(0, 2))
        cotangent = finite(problem.inputs["grad_output"])
        found["w_o"] = np.einsum("bhld,blo->hdo", r.output, cotangent**2)
    return {name: np.sqrt(squares) for name, squares in found.items()}


def _remainders(problem: Problem, a: Approximation, d: Backward, policy: Policy) -> _Remainders:
    beyond, weights = np.zeros_like(d.logits), np.zeros_like(d.logits)
    sinks, unpredicted = np.zeros_like(d.sinks), False
    for b, h in np.ndindex(problem.size, problem.num_heads):
        g = h // problem.group
        left = operand_of(problem, policy, b, h, "query", "w_q", "b_q", a.query[b, h])
        right = operand_of(problem, policy, b, g, "key", "w_k", "b_k", a.key[b, h])
        softmax = softmax_of(problem, a, policy, b, h, left, right)
        beyond[b, h] = softmax.spread * (softmax.steepening - 1) / 6
        weights[b, h] = softmax.weights
        unpredicted = unpredicted or bool(softmax.unpredicted.any())
        sinks[b, h] = d.sink_sizes[b, h] * (weights[b, h] * beyond[b, h]).sum(axis=-1)
    c = abs(problem.multiplier)
    moved = weights * beyond
    logits = moved * (np.abs(d.products - d.delta) + np.abs(d.of_lse))
    scores = c * d.slope * logits
    query, key, value = (np.abs(finite(x)) for x in (a.query, a.key, a.value))
    output = a.weights @ finite(a.value)
    return _Remainders(
        logits=logits**2,
        sinks=sinks**2,
        query=(scores @ key) ** 2,
        key=(scores**2).swapaxes(-1, -2) @ query**2,
        value=(moved**2).swapaxes(-1, -2) @ d.head**2,
        output=(moved @ value + moved.sum(axis=-1, keepdims=True) * np.abs(finite(output))) ** 2,
        unpredicted=unpredicted,
    )
