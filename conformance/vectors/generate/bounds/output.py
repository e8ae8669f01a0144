"""Errors of the output: of each head, or of the heads together in the layer."""

import numpy as np

from conformance.vectors.generate.bounds.average_error import Head
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.normal_form import Limits, Problem, finite
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import partial_sums, sum_variance


def outputs_of(problem: Problem, a: Approximation, policy: Policy, b: int, heads: list[Head]) -> list[Limits]:
    """W and s of the operation's output: one array for each head, or one for the layer."""
    u_a, u_s = policy.accumulation, policy.storage
    if not problem.layer:
        limits = []
        for head, exact in zip(heads, a.output[b], strict=True):
            output = finite(exact)
            floor = head.floor + policy.underflow * head.some
            worst = (head.worst + u_s * np.abs(output)) * policy.second_order + floor
            limits.append((worst, np.sqrt(head.variance + u_s**2 / 3 * output**2) + floor))
        return limits
    output = finite(a.output[b])
    has_bias = "b_o" in problem.inputs
    bias = problem.inputs["b_o"] if has_bias else np.zeros(output.shape[-1])
    product = output - bias
    terms = problem.num_heads * problem.d_v
    operands = 2 if policy.operand else 0
    # the heads of one row side by side, [rows, H d_v]
    side_by_side = finite(a.heads[b]).swapaxes(0, 1).reshape(output.shape[0], terms)
    partial = partial_sums(side_by_side, problem.inputs["w_o"].reshape(terms, output.shape[-1]))
    magnitude = sum((head.magnitude for head in heads), np.zeros_like(output))
    squares = sum((head.squares for head in heads), np.zeros_like(output))
    floor = sum((head.floor for head in heads), np.zeros_like(output)) + 2 * policy.underflow
    worst = (
        sum((head.worst for head in heads), np.zeros_like(output))
        + (terms + 1) * u_a * (magnitude + np.abs(bias))
        + operands * policy.operand * magnitude
        + u_s * (np.abs(product) * has_bias + np.abs(output))
    )
    variance = (
        sum((head.variance for head in heads), np.zeros_like(output))
        + sum_variance(u_a, terms, squares, product, partial)
        + operands * policy.operand**2 / 3 * squares
        + (operands * policy.drift * product) ** 2
        + u_s**2 / 3 * (product**2 * has_bias + output**2)
    )
    return [(worst * policy.second_order + floor, np.sqrt(variance) + floor)]
