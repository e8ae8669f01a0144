"""W of every gradient: the errors of the heads, through groups, projections and the sums over batch and tokens."""

import numpy as np

from conformance.vectors.generate.bounds.projection_error import operand_of
from conformance.vectors.generate.bounds.softmax import softmax_of
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.backward import Backward
from conformance.vectors.generate.gradients.head_errors import HeadErrors, head_errors
from conformance.vectors.generate.normal_form import Array, Problem, finite
from conformance.vectors.generate.policies import Policy

PROJECTIONS = (("query", "w_q", "b_q"), ("key", "w_k", "b_k"), ("value", "w_v", "b_v"))


def worst_gradients(
    problem: Problem, a: Approximation, d: Backward, policy: Policy, bias_shape: tuple[int, ...]
) -> dict[str, Array]:
    """W by argument name, batch axes flattened as in problem.inputs."""
    heads = {
        place: _head(problem, a, d, policy, place) for place in np.ndindex(problem.size, problem.num_heads)
    }
    found: dict[str, Array] = {}
    for name, _, _ in PROJECTIONS:
        error, size = _stacked(heads, name, getattr(d, name)), np.abs(getattr(d, name))
        if name != "query":
            new = slice(problem.kv_len - problem.inputs["key"].shape[-2], None)
            error, size = (grouped(problem, x)[:, :, new] for x in (error, size))
            error = error + policy.storage * size * (problem.group > 1)  # of each head, before the sum
        if problem.layer:
            found |= _projected(problem, policy, name, error, size)
        else:
            found[name] = error
    if problem.has_bias:
        found["attn_bias"] = _bias(
            problem, policy, _stacked(heads, "logits", d.logits), np.abs(d.logits), bias_shape
        )
    if a.sinks is not None:
        error, size = _stacked(heads, "sinks", d.sinks), d.sink_sizes
        found["sinks"] = _summed(policy, error, size, (0, 2)) + policy.underflow * (size.sum(axis=(0, 2)) > 0)
    if problem.layer:
        found |= _output(problem, a, policy, _stacked(heads, "output", a.heads))
    return found


def _head(
    problem: Problem, a: Approximation, d: Backward, policy: Policy, place: tuple[int, int]
) -> HeadErrors:
    b, h = place
    g = h // problem.group
    query = operand_of(problem, policy, b, h, "query", "w_q", "b_q", a.query[b, h])
    key = operand_of(problem, policy, b, g, "key", "w_k", "b_k", a.key[b, h])
    value = operand_of(problem, policy, b, g, "value", "w_v", "b_v", a.value[b, h])
    softmax = softmax_of(problem, a, policy, b, h, query, key)
    head = np.zeros_like(d.head[b, h])
    if problem.layer:
        size = np.abs(finite(problem.inputs["grad_output"][b])) @ np.abs(problem.inputs["w_o"][h]).T
        width = problem.inputs["w_o"].shape[2]
        head = (width * policy.accumulation + 2 * policy.operand) * size + policy.storage * np.abs(
            d.head[b, h]
        )
        head = head + width * policy.accumulation_underflow + policy.underflow
    return head_errors(problem, policy, d, place, softmax, (query, key, value), head)


def _stacked(heads: dict[tuple[int, int], HeadErrors], name: str, values: Array) -> Array:
    """One kind of error of all heads in the shape of what has it, [B, H, ...]; a batch may be empty."""
    return np.array([getattr(errors, name) for errors in heads.values()]).reshape(values.shape)


def grouped(problem: Problem, array: Array) -> Array:
    """[B, H, ...] summed over the heads of each group: [B, G, ...]."""
    return array.reshape(problem.size, problem.num_kv_heads, problem.group, *array.shape[2:]).sum(axis=2)


def _summed(policy: Policy, error: Array, size: Array, axes: tuple[int, ...]) -> Array:
    """Error of a sum over axes, stored; partial sums over one of them may be stored where policy is eager."""
    count = np.prod([size.shape[axis] for axis in axes])
    total = size.sum(axis=axes)
    rounded = count * policy.accumulation + policy.storage + policy.stored_logits * (len(axes) > 1)
    result: Array = error.sum(axis=axes) + rounded * total * policy.second_order
    return result


def _parts_floor(policy: Policy, parts: int) -> float:
    """Underflow of a sum of products, each of which is stored under eager, and of the sum itself."""
    return policy.underflow * (1 + policy.eager * parts)


def _bias(problem: Problem, policy: Policy, error: Array, size: Array, bias_shape: tuple[int, ...]) -> Array:
    """W of the gradient of attn_bias in the bias's shape."""
    axes = (*problem.batch, *error.shape[1:])
    aligned = (1,) * (len(axes) - len(bias_shape)) + bias_shape
    summed = tuple(i for i, (n, want) in enumerate(zip(axes, aligned, strict=True)) if want == 1 and n != 1)
    error, size = error.reshape(axes), size.reshape(axes)
    # each axis may be summed on its own; a stored sum over several axes passes through the dtype once for each
    count = np.prod([axes[i] for i in summed]) if summed else 1.0
    total = size.sum(axis=summed, keepdims=True)
    rounded = count * policy.accumulation + policy.storage + policy.stored_logits * max(len(summed) - 1, 0)
    floor = policy.underflow * (error.sum(axis=summed, keepdims=True) > 0)
    result: Array = error.sum(axis=summed, keepdims=True) + rounded * total * policy.second_order + floor
    return result.reshape(bias_shape)


def _projected(problem: Problem, policy: Policy, name: str, error: Array, size: Array) -> dict[str, Array]:
    """W of the gradients of an operand, its projection and bias; error and size are [B, heads, length, d]."""
    u_a, u_o, u_l, u_s = policy.accumulation, policy.operand, policy.stored_logits, policy.storage
    weight, bias = f"w_{name[0]}", f"b_{name[0]}"
    x, w = np.abs(finite(problem.inputs[name])), np.abs(problem.inputs[weight])
    heads, width = w.shape[0], w.shape[2]
    batch, tokens = x.shape[0], x.shape[0] * x.shape[1]
    into = np.einsum("bhld,hed->ble", size, w)
    found = {
        name: np.einsum("bhld,hed->ble", error, w)
        + ((heads * width + 1) * u_a + 2 * u_o + u_s + u_l) * into * policy.second_order
        + _parts_floor(policy, heads) * (into > 0),
    }
    outer = np.einsum("ble,bhld->hed", x, size)
    found[weight] = np.einsum("ble,bhld->hed", x, error) + (
        (tokens * u_a + 2 * u_o + u_s + u_l) * outer * policy.second_order
        + _parts_floor(policy, batch) * (outer > 0)
    )
    if bias in problem.inputs:
        found[bias] = _summed(policy, error, size, (0, 2)) + policy.underflow * (size.sum(axis=(0, 2)) > 0)
    return found


def _output(problem: Problem, a: Approximation, policy: Policy, error: Array) -> dict[str, Array]:
    """W of the gradients of w_o and b_o."""
    cotangent = np.abs(finite(problem.inputs["grad_output"]))
    tokens = cotangent.shape[0] * cotangent.shape[1]
    size = np.abs(finite(a.heads))
    outer = np.einsum("bhld,blo->hdo", size, cotangent)
    rounded = tokens * policy.accumulation + 2 * policy.operand + policy.storage + policy.stored_logits
    found = {
        "w_o": np.einsum("bhld,blo->hdo", error, cotangent)
        + rounded * outer * policy.second_order
        + _parts_floor(policy, cotangent.shape[0]) * (outer > 0)
    }
    if "b_o" in problem.inputs:
        total = cotangent.sum(axis=(0, 1))
        rounded = tokens * policy.accumulation + policy.storage + policy.stored_logits
        found["b_o"] = rounded * total * policy.second_order + policy.underflow * (total > 0)
    return found
