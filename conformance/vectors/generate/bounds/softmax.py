"""Errors of the logits, as exponents of the softmax."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from conformance.vectors.generate.bounds.projection_error import Operand
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.normal_form import Array, Bools, Problem, finite
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import (
    Ties,
    largest_error,
    partial_sums,
    sum_coherence,
    sum_variance,
    ties,
)

LARGEST_EXPONENT = 700.0
"""Beyond it the convex hull alone bounds the error, and exp overflows."""

LARGEST_SPREAD = 60.0
"""Beyond it nothing is predicted that W does not say, and squares would overflow."""

DEEP = 300.0
"""Errors of logits by which a key may win whose weight float64 does not hold: its logarithm is what counts then."""

REPEATED = 8
"""How often each size of a number has to be there for the errors of the operands to repeat as well."""

NEARLY_LINEAR = 1e-6
"""Below it the second term of the series is all that counts."""

SATURATED = 40.0
"""tanh of it is 1 in float64."""


@dataclass(frozen=True)
class Softmax:
    """One head's weights and the errors of its logits. All [rows, kv_len] unless said otherwise."""

    weights: Array
    visible: Bools
    count: Array  # [rows, 1], visible keys
    exponent: Array  # T: bound on the log of a weight's error factor
    variance: Array  # variance of the same
    sink_weight: Array  # [rows, 1], zero without sinks
    sink_exponent: Array  # [rows, 1]
    sink_variance: Array  # [rows, 1]
    slope: Array  # derivative of the logit by the scaled product: 1 - tanh^2, or 1
    entering: Array  # bound on the error of the scaled product that enters the softcap
    drift: Array  # mean error of the logits where operands are truncated
    of_scale: Array  # what a relative error of the scale moves a logit by
    key: Array  # [kv_len, d_k]
    query_variance: Array  # [rows, d_k], errors that all keys of a row share
    scale: float
    top: Array  # [rows, 1]
    lse: Array  # [rows, 1], zero where it is not finite
    logits: Array
    unit: float  # of the errors of the logits
    sum_unit: float  # of their sums
    weights_unit: float  # of the weights
    repeated: bool  # the operands are rounded, and have few sizes of numbers, so that one error comes again and again

    @cached_property
    def ties(self) -> Ties:
        """Keys whose logits round alike."""
        return ties(self.logits, self.visible, self.unit)

    @cached_property
    def coherence(self) -> Array:
        """How many terms of the sums of a row round alike. [rows, 1]."""
        return sum_coherence(self.logits, self.visible, self.sum_unit)

    @cached_property
    def alike(self) -> Ties:
        """Keys whose weights round alike."""
        logarithms = np.where(self.visible, self.logits - self.lse, 0.0)
        largest = largest_error(logarithms, self.visible, self.weights_unit)
        same = self.weights_unit == self.unit
        found = self.ties if same else ties(self.logits, self.visible, self.weights_unit)
        return replace(found, largest=largest)

    @cached_property
    def spread(self) -> Array:
        """Six RMS errors of the log of a weight, which is what rule 1 lets through."""
        shared = self.query_variance @ (self.key**2).T * (self.scale * self.slope) ** 2
        variance = self.variance + shared
        common = (self.weights**2 * variance).sum(axis=-1, keepdims=True)
        common = common + self.sink_weight**2 * self.sink_variance
        return np.where(self.visible, np.minimum(6 * np.sqrt(variance + common), LARGEST_SPREAD), 0.0)

    @cached_property
    def steepening(self) -> Array:
        """By how much exp of such an error exceeds the error: expm1(x) / x."""
        spread = self.spread
        small = spread < NEARLY_LINEAR
        return np.where(small, 1 + spread / 2, np.expm1(spread) / np.where(small, 1.0, spread))

    @cached_property
    def unpredicted(self) -> Bools:
        """Rows of which nothing is predicted that W does not say: no error is linear, or all are one. [rows, 1]."""
        far = (self.spread >= LARGEST_SPREAD).any(axis=-1, keepdims=True)
        return np.asarray(far | self.repeated)

    @cached_property
    def deep(self) -> Bools:
        """Rows whose weights are moved by more than float64 holds. [rows, 1]."""
        largest = self.exponent.max(axis=-1, keepdims=True, initial=0.0)
        return np.asarray(np.maximum(largest, self.sink_exponent) > DEEP)

    @cached_property
    def moved(self) -> tuple[Array, Array]:
        """By how much keys and sink may be off in units of `denominator`. [rows, kv_len], [rows, 1]."""
        moved, sink = self.weights * self.growth, self.sink_weight * self.sink_growth
        if not self.deep.any():
            return moved, sink
        logs = np.where(self.visible, self.logits - self.lse, -np.inf)
        with np.errstate(divide="ignore"):
            of_sink = np.log(self.sink_weight)
        lower = np.concatenate([logs - self.exponent, of_sink - self.sink_exponent], axis=-1)
        least = finite(np.logaddexp.reduce(lower, axis=-1, keepdims=True))
        raised, of_sink = (
            np.exp(np.minimum(x - least, LARGEST_EXPONENT))
            for x in (logs + self.exponent, of_sink + self.sink_exponent)
        )
        return np.where(self.deep, raised, moved), np.where(self.deep, of_sink, sink)

    @property
    def growth(self) -> Array:
        """expm1(T): relative error of one unnormalised weight."""
        return np.where(self.visible, np.expm1(np.minimum(self.exponent, LARGEST_EXPONENT)), 0.0)

    @property
    def sink_growth(self) -> Array:
        """The same for the sink."""
        return np.expm1(np.minimum(self.sink_exponent, LARGEST_EXPONENT))

    @property
    def denominator(self) -> Array:
        """Sum P exp(-T): the least that the computed denominator can be, relative to the exact one."""
        least = (self.weights * np.exp(-self.exponent)).sum(axis=-1, keepdims=True)
        least = least + self.sink_weight * np.exp(-self.sink_exponent)
        return np.where((least > 0) & ~self.deep, least, 1.0)


@dataclass(frozen=True)
class _Logits:
    """Logits of one head on their way to the exponential, [rows, kv_len], and what they may err by then."""

    values: Array
    worst: Array
    variance: Array


def softmax_of(
    problem: Problem, a: Approximation, policy: Policy, b: int, h: int, query: Operand, key: Operand
) -> Softmax:
    """D and T of the exponents of one head."""
    u_a, u_l = policy.accumulation, policy.stored_logits
    visible = problem.visible[b, h] & np.isfinite(a.lse[b, h])[:, None] & np.isfinite(a.logits[b, h])
    scaled = _scaled(problem, a, policy, b, h, query, key)
    capped, slope, entering = _capped(problem, policy, scaled)
    found = _biased(policy, capped, finite(problem.bias[b, h])) if problem.has_bias else capped
    top, lse = (finite(x) for x in (a.top[b, h], a.lse[b, h][:, None]))
    logits = np.where(visible, found.values, 0.0)
    depth = np.where(visible, lse - logits, 0.0)  # >= top - logits, with the sink in the top or without
    worst = (
        found.worst + 2 * u_a * (np.abs(logits) + np.abs(top)) + u_l * np.abs(depth) + _exponential(policy)
    )
    variance = found.variance + (
        (u_a**2 * (logits**2 + depth**2) + u_l**2 * depth**2 + (2 * u_a) ** 2 + u_l**2) / 3
    )
    sink_weight, sink_exponent, sink_variance = _sink(a, policy, b, h, top, lse)
    return Softmax(
        weights=np.where(visible, finite(a.weights[b, h]), 0.0),
        visible=visible,
        count=np.maximum(visible.sum(axis=-1, keepdims=True), 1).astype(np.float64),
        exponent=np.where(visible, worst, 0.0),
        variance=np.where(visible, variance, 0.0),
        sink_weight=sink_weight,
        sink_exponent=sink_exponent,
        sink_variance=sink_variance,
        slope=slope,
        entering=entering,
        drift=np.where(visible, 2 * policy.drift * slope * scaled.values, 0.0),
        of_scale=np.where(visible, slope * scaled.values, 0.0),
        key=key.value,
        query_variance=query.variance + (u_l**2 + policy.operand**2) / 3 * query.value**2,
        scale=abs(problem.multiplier),
        top=top,
        lse=lse,
        logits=logits,
        unit=max(u_a, u_l),
        sum_unit=u_a,
        weights_unit=max(policy.storage, policy.operand),
        repeated=policy.operand > 0 and (repeats(query.value) or repeats(key.value)),
    )


def _exponential(policy: Policy) -> float:
    """u_exp: the exponential itself, stored."""
    return 4 * policy.accumulation + policy.stored_logits


def _scaled(
    problem: Problem, a: Approximation, policy: Policy, b: int, h: int, query: Operand, key: Operand
) -> _Logits:
    """The scaled products of queries and keys."""
    u_a, u_l = policy.accumulation, policy.stored_logits
    c, d_k = abs(problem.multiplier), problem.d_k
    q, k = query.value, key.value
    scaled = problem.multiplier * (q @ k.T)
    if problem.softcap is not None:  # where a product is infinite the logit is the cap
        side = np.sign(a.raw[b, h]) * np.sign(problem.multiplier)
        scaled = np.where(np.isinf(a.raw[b, h]), SATURATED * problem.softcap * side, scaled)
    size = c * np.abs(q) @ np.abs(k).T
    squares = c**2 * q**2 @ (k**2).T
    worst = (
        _of_operands(c, query, key)
        # query and key may both be scaled first, by the root of the scale, and are then stored and rounded
        + ((d_k + 5) * u_a + 2 * policy.operand + 2 * u_l) * size
        + u_l * np.abs(scaled)
        + c * d_k * policy.accumulation_underflow
        + 2 * max(1.0, c) * policy.underflow * policy.eager
    )
    variance = (
        (c**2 * q**2 @ key.variance.T if key.variance.any() else 0.0)
        + sum_variance(u_a, d_k, squares, scaled, c**2 * partial_sums(q, k.T))
        + (policy.operand**2 + u_l**2) / 3 * squares
        + 2 * u_l**2 / 3 * scaled**2
    )
    return _Logits(scaled, worst, variance)


def _capped(problem: Problem, policy: Policy, scaled: _Logits) -> tuple[_Logits, Array, Array]:
    """The logits after the softcap, its slope, and the bound on what enters it."""
    x, cap = scaled.values, problem.softcap
    if cap is None:
        return scaled, np.ones_like(x), scaled.worst
    u_a, u_l = policy.accumulation, policy.stored_logits
    logits = cap * np.tanh(x / cap)
    slope = 1 - np.tanh(x / cap) ** 2
    entering = scaled.worst + (u_l + 2 * u_a) * np.abs(x)
    steepest = 1 - np.tanh(np.maximum(np.abs(x) - entering, 0.0) / cap) ** 2
    worst = steepest * entering + (8 * u_a + 2 * u_l) * np.abs(logits)
    variance = (
        slope**2 * (scaled.variance + u_l**2 / 3 * x**2) + ((4 * u_a) ** 2 / 3 + 2 * u_l**2 / 3) * logits**2
    )
    return _Logits(logits, worst, variance), slope, entering


def _biased(policy: Policy, capped: _Logits, bias: Array) -> _Logits:
    """The logits with the bias added."""
    u_a, u_l = policy.accumulation, policy.stored_logits
    logits = capped.values + bias
    worst = capped.worst + (u_l + u_a) * np.abs(logits) + u_l * np.abs(bias)
    return _Logits(logits, worst, capped.variance + u_l**2 / 3 * logits**2)


def _sink(
    a: Approximation, policy: Policy, b: int, h: int, top: Array, lse: Array
) -> tuple[Array, Array, Array]:
    """Weight, T and variance of a head's sink, [rows, 1]; zero without one."""
    if a.sinks is None or not np.isfinite(a.sinks[h]):
        return np.zeros_like(top), np.zeros_like(top), np.zeros_like(top)
    u_a, u_l, sink = policy.accumulation, policy.stored_logits, float(a.sinks[h])
    counted = np.isfinite(a.lse[b, h])[:, None]  # of an empty row the sink is all there is
    return (
        np.where(counted, np.exp(np.minimum(sink - lse, 0.0)), 0.0),
        2 * u_a * (abs(sink) + np.abs(top)) + u_l * np.abs(lse - sink) + _exponential(policy),
        (u_l**2 * (lse - sink) ** 2 + u_a**2 * sink**2 + (2 * u_a) ** 2 + u_l**2) / 3,
    )


def repeats(x: Array) -> bool:
    """Whether its numbers have few sizes, but for powers of two."""
    sizes = np.frexp(np.abs(x[x != 0]))[0]
    return bool(0 < len(np.unique(sizes)) * REPEATED <= sizes.size)


def _of_operands(c: float, query: Operand, key: Operand) -> Array | float:
    """What errors of query and key do to the scaled product."""
    if not (query.worst.any() or key.worst.any()):
        return 0.0
    abs_q, abs_k = np.abs(query.value), np.abs(key.value)
    return c * (abs_q @ key.worst.T + query.worst @ abs_k.T + query.worst @ key.worst.T)


def stored_lse(softmax: Softmax, policy: Policy) -> Array:
    """What storing the maximum and the logarithm of the sum costs the lse. [rows, 1]."""
    u_a = policy.accumulation
    return 4 * u_a * np.abs(softmax.lse - softmax.top) + u_a * (np.abs(softmax.top) + np.abs(softmax.lse))


def recomputed(softmax: Softmax, policy: Policy) -> Array:
    """What it costs a returned weight to be recomputed as exp(logit - lse). [rows, 1]."""
    return stored_lse(softmax, policy) + 2 * policy.accumulation * np.abs(softmax.lse)
