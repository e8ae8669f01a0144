"""The same call in plain float64: where results are not finite, and the magnitudes that the bounds are made of."""

from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.normal_form import Array, Problem, for_each_head


@dataclass(frozen=True)
class Approximation:
    """Intermediate results; everything indexed by query head has its key head repeated."""

    query: Array  # [B, H, rows, d_k]
    key: Array  # [B, H, kv_len, d_k]
    value: Array  # [B, H, kv_len, d_v]
    raw: Array  # [B, H, rows, kv_len], q k^T
    logits: Array  # [B, H, rows, kv_len], after scale, softcap and bias; -inf where masked
    sinks: Array | None  # [H]
    top: Array  # [B, H, rows, 1], the largest logit or sink; 0 where there is neither
    weights: Array  # [B, H, rows, kv_len]
    lse: Array  # [B, H, rows]
    heads: Array  # [B, H, rows, d_v]
    output: Array  # [B, H, rows, d_v], or [B, rows, d_out] for the layer


def approximate(problem: Problem) -> Approximation:
    """Everything in float64, with the spec's rules for NaN and Inf."""
    with np.errstate(invalid="ignore", over="ignore"):
        query, key, value = _projected(problem)
        key, value = (for_each_head(x, problem.group) for x in (key, value))
        raw = query @ np.swapaxes(key, -1, -2)
        logits = problem.multiplier * raw
        if problem.softcap is not None:
            logits = problem.softcap * np.tanh(logits / problem.softcap)
        logits = np.where(problem.visible, logits + problem.bias, -np.inf)
        sinks = problem.inputs.get("sinks")
        some = problem.visible.any(axis=-1, keepdims=True)
        top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
        if sinks is not None:
            top = np.maximum(top, sinks[:, None, None])
        counted = some | ~np.isneginf(top)  # MASK-16: the sink alone is a denominator as well
        top = np.where(counted, top, 0.0)
        exponentials = np.where(problem.visible, np.exp(logits - top), 0.0)
        total = exponentials.sum(axis=-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[:, None, None] - top)
        weights = np.where(some, exponentials / np.where(some, total, 1.0), 0.0)
        lse = np.where(counted, top + np.log(np.where(counted, total, 1.0)), -np.inf)[..., 0]
        heads = _average(weights, value, problem)
        output = _merged(problem, heads) if problem.layer else heads
    return Approximation(query, key, value, raw, logits, sinks, top, weights, lse, heads, output)


def present(problem: Problem, a: Approximation) -> dict[str, Array]:
    """The keys and values with the past in front, by the names of their outputs: [B, G, kv_len, d]."""
    return {"present_key": a.key[:, :: problem.group], "present_value": a.value[:, :: problem.group]}


def _projected(problem: Problem) -> tuple[Array, Array, Array]:
    projected = []
    for name, weight, bias in (("query", "w_q", "b_q"), ("key", "w_k", "b_k"), ("value", "w_v", "b_v")):
        x = problem.inputs[name]
        if problem.layer:
            x = x[:, None] @ problem.inputs[weight]
            if bias in problem.inputs:
                x = x + problem.inputs[bias][:, None, :]
        if f"past_{name}" in problem.inputs:
            x = np.concatenate([problem.inputs[f"past_{name}"], x], axis=-2)
        projected.append(x)
    return projected[0], projected[1], projected[2]


def _average(weights: Array, value: Array, problem: Problem) -> Array:
    """Weights @ value, where a NaN or Inf counts for the rows that see it and for no other."""
    if np.isfinite(value[:, :: problem.group]).all():
        return weights @ value
    heads = weights @ np.where(np.isfinite(value), value, 0.0)
    seen = np.any(problem.visible, axis=-2, keepdims=True).swapaxes(-1, -2)  # [B, H, kv_len, 1]
    for b, h, j, d in np.argwhere(seen & ~np.isfinite(value)):
        heads[b, h, problem.visible[b, h, :, j], d] += value[b, h, j, d]
    return heads


def _merged(problem: Problem, heads: Array) -> Array:
    output = np.einsum("bhnd,hdo->bno", heads, problem.inputs["w_o"])
    return output + problem.inputs["b_o"] if "b_o" in problem.inputs else output
