"""Less than W and s of an attention output: sums of those parts of them that all heads share one product for.

Each part is one of spec/bounds.md, or less than it; all of them are added up there. What passes these passes W and s.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.judging.measure import Measure, root_mean_square
from conformance.vectors.case import Bound, Golden
from conformance.vectors.generate.bounds import partial_limits
from conformance.vectors.generate.bounds.softmax import repeats
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.normal_form import Array, Bools, Limits, Problem, finite
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import SUM_RMS

MARGIN = 1 - 2.0**-20
"""Covers the roundings of sums that are formed in another order."""
DRAWS = 24
"""Drawn roundings that s of a gradient is found from, at first."""
PART = 0.75
"""Of such an s, which is off by a seventh: less than s, but for one element in twenty."""
STRICTEST = 1.25
"""The least of rule 2's limits."""
SHARE = 64
"""A value of the first tier is admitted where its own error is below such a part of the tolerance."""
SMALL = 0.25
"""Logits whose errors are below it never lead out of the convex hull of the values."""
_T = (-1, -2)


def least_limits(
    problem: Problem, a: Approximation, policy: Policy, wanted: tuple[str, ...]
) -> dict[str, Limits]:
    """At most W and s of every wanted output, as `partial_limits` gives them; of a layer they are the same."""
    if problem.layer:
        return partial_limits(problem, a, policy, wanted)
    logits = _logits(problem, a, policy)
    found = {"output": _output(problem, a, policy, logits)}
    if "weights" in wanted:
        found["weights"] = _weights(a, policy, logits)
    if "lse" in wanted:
        found["lse"] = _lse(a, policy, logits)
    for name, whole in (("present_key", a.key), ("present_value", a.value)):  # what was given is exact
        found[name] = (np.zeros_like(whole[:, :: problem.group]),) * 2
    if policy.operand and (few := _few_sizes(a)).any():  # there s is W, as the whole bounds have it
        for name in ("output", "weights", "lse"):
            if name in found:
                worst, rms = found[name]
                found[name] = worst, np.where(few.reshape(*few.shape, *(1,) * (worst.ndim - 2)), worst, rms)
    return {name: (found[name][0] * MARGIN, found[name][1] * MARGIN) for name in wanted}


def _few_sizes(a: Approximation) -> Bools:
    """The heads whose query or key has few sizes of numbers, [B, H]."""
    found = [
        [repeats(q) or repeats(k) for q, k in zip(*of, strict=True)]
        for of in zip(a.query, a.key, strict=True)
    ]
    return np.array(found, bool).reshape(a.query.shape[:2])


def looks_right(m: Measure, bound: Bound, own_error: Array) -> bool:
    """Whether what passes by bounds that are too small passes by the others too.

    Where the smaller s is zero the other may not be: nothing may be erred there, and the strictest limit of rule 2
    holds, since that has another count. A gradient's s is an estimate, of which a part is taken.
    """
    there = np.isfinite(m.golden.hi)
    rms = bound.rms.astype(np.float64)
    if not ((own_error <= m.allowed / SHARE) | ~there).all():
        return False
    if (none := there & (rms == 0)).any():
        if m.error[none].any():
            return False
        scored = there & (rms > 0)
        strictly = not scored.any() or root_mean_square(m.error[scored], rms[scored]) <= STRICTEST
        return strictly or not m.golden.rms_applies
    return True


def less_sure(golden: Golden) -> Golden:
    """A gradient with a part of the s that few drawn roundings show."""
    bounds = {
        dtype: {policy: Bound(bound.worst, bound.rms * PART) for policy, bound in of.items()}
        for dtype, of in golden.bounds.items()
    }
    return replace(golden, bounds=bounds)


@dataclass(frozen=True)
class _Logits:
    """Errors of the logits, [B, H, rows, kv_len], and what they are errors of."""

    seen: Bools
    weights: Array
    worst: Array  # at most T
    variance: Array
    sinks: Array  # [B, H, rows, 1]: the weight of the sink
    sinks_worst: Array  # [B, H, rows, 1]
    sinks_variance: Array
    top: Array  # [B, H, rows, 1]
    lse: Array  # [B, H, rows, 1]
    count: Array  # [B, H, rows, 1]


def _logits(problem: Problem, a: Approximation, policy: Policy) -> _Logits:
    u_a, u_l = policy.accumulation, policy.stored_logits
    c, d_k = abs(problem.multiplier), problem.d_k
    seen = problem.visible & np.isfinite(a.lse)[..., None] & np.isfinite(a.logits)
    q, k = finite(a.query), finite(a.key).swapaxes(*_T)
    scaled = problem.multiplier * (q @ k)
    if problem.softcap is not None:
        side = np.sign(a.raw) * np.sign(problem.multiplier)
        scaled = np.where(np.isinf(a.raw), 40.0 * problem.softcap * side, scaled)
    square = scaled**2
    products = c**2 * (q**2 @ k**2)
    worst = ((d_k + 5) * u_a + 2 * policy.operand + 2 * u_l) * c * (np.abs(q) @ np.abs(k))
    worst += u_l * np.abs(scaled)
    variance = (u_a**2 * SUM_RMS**2 * d_k + (policy.operand**2 + u_l**2) / 3) * products
    variance += (u_a**2 * SUM_RMS**2 * d_k + 2 * u_l**2 / 3) * square
    logits = scaled
    if problem.softcap is not None:
        cap = problem.softcap
        steep = np.tanh(scaled / cap)
        logits, slope = cap * steep, 1 - steep**2
        # no less steep than where the product is as large as it may be
        worst = slope * (worst + (u_l + 2 * u_a) * np.abs(scaled)) + (8 * u_a + 2 * u_l) * np.abs(logits)
        variance = slope**2 * (variance + u_l**2 / 3 * square)
        variance += ((4 * u_a) ** 2 / 3 + 2 * u_l**2 / 3) * logits**2
    if problem.has_bias:
        bias = finite(problem.bias)
        logits = logits + bias
        worst = worst + (u_l + u_a) * np.abs(logits) + u_l * np.abs(bias)
        variance = variance + u_l**2 / 3 * logits**2
    top, lse = finite(a.top), finite(a.lse)[..., None]
    logits = np.where(seen, logits, 0.0)
    depth = np.where(seen, lse - logits, 0.0)
    exponential = 4 * u_a + u_l
    worst += 2 * u_a * (np.abs(logits) + np.abs(top)) + u_l * np.abs(depth) + exponential
    variance += ((u_a**2 + u_l**2) * depth**2 + u_a**2 * logits**2 + (2 * u_a) ** 2 + u_l**2) / 3
    sinks, sinks_worst, sinks_variance = _of_sinks(a, policy, seen, top, lse)
    return _Logits(
        seen=seen,
        weights=np.where(seen, finite(a.weights), 0.0),
        worst=np.where(seen, worst, 0.0),
        variance=np.where(seen, variance, 0.0),
        sinks=sinks,
        sinks_worst=sinks_worst,
        sinks_variance=sinks_variance,
        top=top,
        lse=lse,
        count=np.maximum(seen.sum(axis=-1, keepdims=True), 1).astype(np.float64),
    )


def _of_sinks(
    a: Approximation, policy: Policy, seen: Bools, top: Array, lse: Array
) -> tuple[Array, Array, Array]:
    """The weight of each sink, and what it may be off by."""
    none = np.zeros_like(top)
    if a.sinks is None:
        return none, none, none
    u_a, u_l = policy.accumulation, policy.stored_logits
    sink = finite(a.sinks)[:, None, None]
    there = seen.any(axis=-1, keepdims=True) & np.isfinite(a.sinks)[:, None, None]
    weight = np.where(there, np.exp(np.minimum(sink - lse, 0.0)), 0.0)
    worst = 2 * u_a * (np.abs(sink) + np.abs(top)) + u_l * np.abs(lse - sink) + 4 * u_a + u_l
    variance = (u_l**2 * (lse - sink) ** 2 + u_a**2 * sink**2 + (2 * u_a) ** 2 + u_l**2) / 3
    return weight, np.where(there, worst, 0.0), np.where(there, variance, 0.0)


def _output(problem: Problem, a: Approximation, policy: Policy, x: _Logits) -> Limits:
    """Of the average of the values."""
    u_a, u_l, u_s = policy.accumulation, policy.stored_logits, policy.storage
    p, v = x.weights, finite(a.value)
    average, size, n = p @ v, np.abs(v), x.count
    output = finite(a.output)
    absolute = p @ size
    worst = (
        _moved(x, v, average)
        + (n * u_a + 2 * u_l + 4 * u_a) * np.abs(average)
        + (u_s + 1.25 * n * u_a + policy.operand) * absolute
        + u_s * np.abs(output)
    )
    squares = p**2
    products = squares @ v**2
    sums = u_a**2 * SUM_RMS**2 * n
    variance = (
        _apart(squares * x.variance, v, average)
        + x.sinks**2 * x.sinks_variance * average**2
        + (sums * (squares.sum(axis=-1, keepdims=True) + 2) + (2 * u_a) ** 2 + 2 * u_l**2 / 3) * average**2
        + ((u_s**2 + policy.operand**2) / 3 + sums) * products
        + u_s**2 / 3 * output**2
    )
    floor = policy.underflow * x.seen.any(axis=-1, keepdims=True)
    return worst + floor, np.sqrt(variance) + floor


def _moved(x: _Logits, v: Array, average: Array) -> Array:
    """At most what errors of the logits do: |v - average| is at least its square over the largest of them."""
    moving = x.weights * x.worst
    largest = np.abs(v).max(axis=-2, keepdims=True, initial=0.0) + np.abs(average)
    spread = _apart(moving, v, average) / np.where(largest > 0, largest, 1.0)
    spread += x.sinks * x.sinks_worst * np.abs(average)
    small = np.maximum(x.worst.max(axis=-1, keepdims=True, initial=0.0), x.sinks_worst) <= SMALL
    return np.where(small, spread, 0.0)


def _apart(weights: Array, v: Array, average: Array) -> Array:
    """At most the sum over keys of weights (v - average)^2, whose parts cancel: their errors are taken off."""
    parts = weights @ v**2, 2 * average * (weights @ v), average**2 * weights.sum(axis=-1, keepdims=True)
    lost = (
        (weights.shape[-1] + 8) * 2.0**-50 * (parts[0] + np.abs(average) * (weights @ np.abs(v)) + parts[2])
    )
    found: Array = np.maximum(parts[0] - parts[1] + parts[2] - lost, 0.0)
    return found


def _normaliser(policy: Policy, x: _Logits) -> Array:
    squares = (x.weights**2).sum(axis=-1, keepdims=True)
    total = policy.accumulation**2 * SUM_RMS**2 * x.count * (squares + 1)
    found: Array = total + (3 * policy.accumulation) ** 2 + 2 * policy.stored_logits**2 / 3
    return found


def _stored(policy: Policy, x: _Logits) -> Array:
    found: Array = policy.accumulation * (4 * np.abs(x.lse - x.top) + np.abs(x.top) + np.abs(x.lse))
    return found


def _weights(a: Approximation, policy: Policy, x: _Logits) -> Limits:
    p, u_a = x.weights, policy.accumulation
    moved = p * x.worst
    others = moved.sum(axis=-1, keepdims=True) - moved + x.sinks * x.sinks_worst
    error = np.minimum(p * ((1 - p) * x.worst + others), np.maximum(p, 1 - p))
    kept = _stored(policy, x) + 2 * u_a * np.abs(x.lse)
    rho = (x.count + 6) * u_a + 2 * policy.stored_logits + kept
    worst = np.where(x.seen, error, 0.0) + (rho + policy.storage) * p
    each = p**2 * x.variance
    shared = np.maximum(each.sum(axis=-1, keepdims=True) - each, 0.0) + x.sinks**2 * x.sinks_variance
    variance = (1 - p) ** 2 * x.variance + shared + _normaliser(policy, x)
    variance = p**2 * (variance + policy.storage**2 / 3 + kept**2 / 3)
    return worst, np.sqrt(variance)


def _lse(a: Approximation, policy: Policy, x: _Logits) -> Limits:
    above = (x.weights * x.worst).sum(axis=-1, keepdims=True) + x.sinks * x.sinks_worst
    stored = _stored(policy, x)
    rounded = (x.count + 6) * policy.accumulation + 2 * policy.stored_logits
    worst = np.log1p(above) + rounded + stored + policy.storage * np.abs(x.lse)
    variance = (x.weights**2 * x.variance).sum(axis=-1, keepdims=True) + x.sinks**2 * x.sinks_variance
    variance = variance + _normaliser(policy, x) + stored**2 / 3 + policy.storage**2 / 3 * x.lse**2
    some: Any = x.seen.any(axis=-1)
    return np.where(some, worst[..., 0], 0.0), np.where(some, np.sqrt(variance[..., 0]), 0.0)
