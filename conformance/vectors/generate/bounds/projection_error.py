"""Errors of query, key and value: none for what was given, the projection's for what was projected."""

from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.normal_form import Array, Limits, Problem, finite
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.random_inputs import round_to_bits
from conformance.vectors.generate.summation_error import partial_sums, sum_variance


@dataclass(frozen=True)
class Operand:
    """A head of query, key or value with its error: exact unless it was projected."""

    value: Array  # [length, width]
    worst: Array  # E, same shape
    variance: Array  # same shape
    exact_bits: int  # 1 if a matmul operand under the policy holds it exactly, else 0

    @property
    def rounded(self) -> int:
        """How many operand roundings a product with it costs."""
        return 1 - self.exact_bits


def operand_of(
    problem: Problem, policy: Policy, b: int, i: int, name: str, weight: str, bias: str, value: Array
) -> Operand:
    """E_Q, E_K or E_V and its variance: zero for what was given, the projection's error for what was projected."""
    value = finite(value)
    exact_bits = (
        int(np.array_equal(round_to_bits(value, policy.operand_bits), value)) if policy.operand else 1
    )
    worst, variance = np.zeros(value.shape), np.zeros(value.shape)
    if problem.layer:
        x, w = finite(problem.inputs[name][b]), problem.inputs[weight][i]
        has_bias = bias in problem.inputs
        offset = problem.inputs[bias][i] if has_bias else np.zeros(w.shape[1])
        new_worst, new_variance = _projection(x, w, offset, has_bias, policy)
        start = value.shape[0] - x.shape[0]
        worst[start:], variance[start:] = new_worst, new_variance
        exact_bits = 0 if policy.operand else 1
    return Operand(value, worst, variance, exact_bits)


def _projection(x: Array, w: Array, bias: Array, has_bias: bool, policy: Policy) -> Limits:
    """E and variance of x @ w + bias, stored in the dtype once or, with a bias, twice."""
    width = x.shape[1]
    product, size = x @ w, np.abs(x) @ np.abs(w)
    result = product + bias
    rounded = (
        sum(not np.array_equal(round_to_bits(m, policy.operand_bits), m) for m in (x, w))
        if policy.operand
        else 0
    )
    worst = (
        (width + 1) * policy.accumulation * (size + np.abs(bias))
        + rounded * policy.operand * size
        + policy.storage * (np.abs(product) * has_bias + np.abs(result))
        + width * policy.accumulation_underflow
        + 2 * policy.underflow
    )
    squares = x**2 @ w**2
    variance = (
        sum_variance(policy.accumulation, width, squares, product, partial_sums(x, w))
        + rounded * policy.operand**2 / 3 * squares
        + (rounded * policy.drift * product) ** 2
        + policy.storage**2 / 3 * (product**2 * has_bias + result**2)
        + policy.underflow**2
    )
    return worst, variance
