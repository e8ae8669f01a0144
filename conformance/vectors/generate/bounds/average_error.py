"""Errors of one head's average of the values, through its part of W^O where there is one."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.vectors.generate.bounds.projection_error import Operand
from conformance.vectors.generate.bounds.softmax import Softmax
from conformance.vectors.generate.bounds.weights_lse import weights_floor
from conformance.vectors.generate.normal_form import Array
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import AT_LENGTH, LONG, partial_sums, sum_variance

CACHED = 1 << 15
"""Numbers that fit a processor's cache beside others."""
PEAKED = 2.0**-10
"""What a row may leave to other keys than one, and yet be looked at on its own."""


@dataclass(frozen=True)
class Head:
    """Contribution of one head to the output, already through its part of W^O where there is one. [rows, width]."""

    worst: Array
    variance: Array
    floor: Array  # what underflow may cost, kept out of the quadrature
    magnitude: Array  # |Z| |W_O|
    squares: Array  # Z^2 W_O^2
    some: Array  # [rows, 1], 0 where the row is empty: its output is exactly zero


def head_of(policy: Policy, softmax: Softmax, value: Operand, projection: Array | None) -> Head:
    """The error of P U, where U = V W_O; without a projection it is that of P V."""
    u_a, u_l, u_s = policy.accumulation, policy.stored_logits, policy.storage
    p, v = softmax.weights, value.value

    def through(x: Array, power: int) -> Array:  # [rows, d_v] -> [rows, width]
        return x if projection is None else x @ np.abs(projection) ** power

    z = p @ v
    u = v if projection is None else v @ projection
    average = z if projection is None else p @ u
    n = softmax.count
    operands = 1 + value.rounded if policy.operand else 0
    absolute = p @ np.abs(v)
    worst = (
        _logit_error(softmax, u, average)
        + (n * u_a + 2 * u_l + 4 * u_a) * np.abs(average)
        + u_s * (p @ np.abs(u))
        + through(_weighted(p, value.worst), 1)
        + (1.25 * n * u_a + operands * policy.operand) * through(absolute, 1)
    )
    moved = _logit_variance(softmax, u, average)
    common = sum_variance(u_a, n * softmax.coherence, (p**2).sum(axis=-1, keepdims=True), np.ones_like(n))
    products = p**2 @ v**2
    variance: Array = (
        moved
        + (common + (2 * u_a) ** 2 + 2 * u_l**2 / 3 + (operands * policy.drift) ** 2) * average**2
        + (u_s**2 + policy.operand**2) / 3 * softmax.alike.spread(p, u)
        + through(_weighted(p**2, value.variance), 2)
        + through(
            sum_variance(u_a, n * softmax.coherence, products, z, partial_sums(p, v))
            + value.rounded * policy.operand**2 / 3 * products,
            2,
        )
    )
    variance = np.where(softmax.unpredicted, np.maximum(variance, worst**2), variance)
    seen = softmax.visible.astype(np.float64)
    floor = weights_floor(policy) * (seen @ np.abs(u))
    floor = floor + policy.accumulation_underflow * (seen.sum(axis=-1, keepdims=True) + seen @ np.abs(u))
    if projection is not None:
        worst = worst + u_s * through(np.abs(z), 1)
        variance = variance + u_s**2 / 3 * through(z**2, 2)
        floor = floor + policy.underflow * np.abs(projection).sum(axis=0)
    some = seen.max(axis=-1, keepdims=True, initial=0.0)
    return Head(worst, variance, floor, through(np.abs(z), 1), through(z**2, 2), some)


def _weighted(weights: Array, errors: Array) -> Array:
    """Weights times the errors of the values, of which many have none."""
    return weights @ errors if errors.any() else np.zeros((len(weights), errors.shape[1]))


def _logit_error(softmax: Softmax, u: Array, average: Array) -> Array:
    """Errors of the logits act on U less its average, and never beyond the convex hull of U."""
    growth, total = softmax.growth, softmax.denominator
    moving, sink = softmax.moved
    worst = np.empty_like(average)
    for i, of_row in enumerate(moving):
        seen = softmax.visible[i]
        moved = _weighted_distance(of_row, u, average[i])
        if sink[i, 0] > 0:
            moved = moved + sink[i, 0] * np.abs(average[i])
        with np.errstate(over="ignore"):  # the hull bounds what is beyond all numbers
            worst[i] = moved / total[i]
        if max(growth[i].max(initial=0.0), softmax.sink_growth[i, 0]) <= total[i, 0]:
            continue  # an average of distances is within the hull
        hull = np.zeros_like(average[i])
        if seen.any():
            hull = np.maximum(u[seen].max(axis=0) - average[i], average[i] - u[seen].min(axis=0))
        if softmax.sink_weight[i, 0] > 0:
            hull = np.maximum(hull, np.abs(average[i]))
        worst[i] = np.minimum(worst[i], hull)
    return worst


def _weighted_distance(weights: Array, u: Array, centre: Array) -> Array:
    """Sum of weights |u - centre|, a cache's load of keys at a time."""
    step = max(1, CACHED // max(1, u.shape[1]))
    found = np.zeros_like(centre)
    for start in range(0, len(u), step):
        away = u[start : start + step] - centre
        found += weights[start : start + step] @ np.abs(away, out=away)
    return found


def _logit_variance(softmax: Softmax, u: Array, average: Array) -> Array:
    """Independent errors of the logits, and those of the query, which move all keys of a row alike."""
    steep = softmax.weights * softmax.steepening
    variance = softmax.ties.spread(steep * np.sqrt(softmax.variance), u, average)
    variance = variance + softmax.sink_weight**2 * softmax.sink_variance * average**2
    if softmax.drift.any():
        drift = [of_row @ (u - centre) for of_row, centre in zip(steep * softmax.drift, average, strict=True)]
        variance = variance + np.reshape(drift, average.shape) ** 2
    if softmax.query_variance.any():
        variance = variance + _of_query(softmax, steep, u, average)
    return variance


def _of_query(softmax: Softmax, steep: Array, u: Array, average: Array) -> Array:
    """What errors of the query add to the variance, which move all keys of a row together. [rows, width]."""
    moving = softmax.scale * softmax.slope * steep
    found = np.zeros_like(average)
    alone = np.ones(len(steep), dtype=bool)
    if len(steep) > softmax.key.shape[1] and steep.size * u.shape[1] > AT_LENGTH:
        # many rows at once; where one key has nearly all the weight, its part would cancel
        alone = softmax.weights.max(axis=-1, initial=0.0) > 1 - PEAKED
        middle = u.mean(axis=0)
        away, means = u - middle, average - middle
        for d, key in enumerate(softmax.key.T):
            covariance = moving @ (key[:, None] * away) - (moving @ key)[:, None] * means
            found += softmax.query_variance[:, d, None] * covariance**2
    kind: type[np.floating[Any]] = np.float32 if u.size > LONG else np.float64
    middle = u.mean(axis=0) if u.size > LONG else np.zeros(u.shape[1])
    moved, means, moving, keys = (
        x.astype(kind, copy=False) for x in (u - middle, average - middle, moving, softmax.key)
    )
    for i in np.flatnonzero(alone):
        covariance = (moving[i][:, None] * keys).T @ (moved - means[i])  # [d_k, width]
        found[i] = softmax.query_variance[i] @ covariance.astype(np.float64) ** 2
    return found
