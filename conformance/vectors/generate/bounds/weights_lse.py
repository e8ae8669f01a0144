"""Errors of what the softmax itself gives: the weights and the lse."""

import numpy as np

from conformance.vectors.generate.bounds.softmax import LARGEST_EXPONENT, Softmax, recomputed, stored_lse
from conformance.vectors.generate.normal_form import Array, Limits
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import sum_variance


def normaliser(softmax: Softmax, policy: Policy) -> Array:
    """rho: relative error of the denominator and of the division by it. [rows, 1]."""
    return softmax.count * policy.accumulation + 6 * policy.accumulation + 2 * policy.stored_logits


def weights_floor(policy: Policy) -> float:
    """What underflow may cost a weight: stored once, and under eager what is normalised to it as well."""
    return (1 + policy.eager) * policy.underflow


def _normaliser_variance(softmax: Softmax, policy: Policy) -> Array:
    squares = (softmax.weights**2).sum(axis=-1, keepdims=True)
    count = softmax.count * softmax.coherence
    total = sum_variance(policy.accumulation, count, squares, np.ones_like(squares))
    return total + (3 * policy.accumulation) ** 2 + 2 * policy.stored_logits**2 / 3


def _shared_variance(softmax: Softmax) -> Array:
    """Variance of the log of the denominator by independent errors of the logits. [rows, 1]."""
    spread = softmax.ties.spread(
        softmax.weights * np.sqrt(softmax.variance), np.ones((softmax.weights.shape[1], 1))
    )
    return spread + softmax.sink_weight**2 * softmax.sink_variance


def weights_error(softmax: Softmax) -> Array:
    """E_P: what errors of the logits do to the weights, which stay between 0 and 1. [rows, kv_len]."""
    p, (moved, sink) = softmax.weights, softmax.moved
    others = moved.sum(axis=-1, keepdims=True) - moved + sink
    with np.errstate(over="ignore"):  # a weight is off by 1 at most
        own = np.where(softmax.deep, (1 - p) * moved + p * others, p * ((1 - p) * softmax.growth + others))
        error = np.minimum(own / softmax.denominator, np.maximum(p, 1 - p))
    return np.where(softmax.visible, error, 0.0)


def weights_limits(softmax: Softmax, policy: Policy) -> Limits:
    """W and s of the weights; exactly zero where masked."""
    p, error = softmax.weights, weights_error(softmax)
    kept = recomputed(softmax, policy)
    rho = normaliser(softmax, policy) + kept
    floor = softmax.visible * weights_floor(policy)
    worst = (error + (rho + policy.storage) * (p + error)) * policy.second_order + floor
    shared = _shared_variance(softmax)
    variance = p**2 * ((1 - 2 * p) * softmax.variance + shared)
    variance = np.maximum(variance, 0.0) + p**2 * _of_query(softmax)
    variance = variance * softmax.steepening**2
    stored = (softmax.alike.largest * policy.storage) ** 2 / 3
    variance = variance + p**2 * (_normaliser_variance(softmax, policy) + stored + kept**2 / 3)
    variance = variance + p**2 * (softmax.drift - (p * softmax.drift).sum(axis=-1, keepdims=True)) ** 2
    return worst, np.where(softmax.unpredicted, worst, np.sqrt(variance) + floor)


def fall(softmax: Softmax) -> Array:
    """-log of the least denominator, [rows, 1].

    Near 1 it is formed from the distance to 1. The subtraction would leave a few last bits of it, and those differ
    from one machine to the next.
    """
    below = (softmax.weights * np.expm1(-softmax.exponent)).sum(axis=-1, keepdims=True)
    below = below + softmax.sink_weight * np.expm1(-softmax.sink_exponent)  # weights and sink add up to 1
    least = np.where(softmax.deep, 1.0 + below, softmax.denominator)
    least = np.clip(least, np.exp(-LARGEST_EXPONENT), 1.0)
    return np.where(below > -0.5, -np.log1p(np.maximum(below, -0.5)), -np.log(least))


def _of_query(softmax: Softmax) -> Array:
    """What errors of the query do to the log of a weight: they move its key as far as that is from the mean."""
    found = np.empty_like(softmax.weights)
    for i, (p, slope, variance) in enumerate(
        zip(softmax.weights, softmax.slope, softmax.query_variance, strict=True)
    ):
        keys = softmax.scale * slope[:, None] * softmax.key  # [kv_len, d_k]
        found[i] = (keys - p @ keys) ** 2 @ variance
    return found


def _far(softmax: Softmax) -> Array:
    """Where an exponential of what a logit may be off by is no number. [rows, 1]."""
    largest = np.where(softmax.visible, softmax.exponent, 0.0).max(axis=-1, keepdims=True, initial=0.0)
    some = softmax.visible.any(axis=-1, keepdims=True)
    return some & (np.maximum(largest, softmax.sink_exponent) > LARGEST_EXPONENT)


def _by_logarithms(softmax: Softmax) -> Array:
    """max(log sum P exp(T), -log sum P exp(-T)), without the exponentials of T. [rows, 1]."""
    with np.errstate(divide="ignore"):
        sink = np.log(softmax.sink_weight)
    parts = np.where(softmax.visible, softmax.logits - softmax.lse, -np.inf)
    found = np.zeros_like(softmax.lse)
    for sign in (1, -1):
        moved = np.concatenate(
            [parts + sign * softmax.exponent, sink + sign * softmax.sink_exponent], axis=-1
        )
        found = np.maximum(found, sign * np.logaddexp.reduce(moved, axis=-1, keepdims=True))
    return found


def lse_limits(softmax: Softmax, policy: Policy) -> Limits:
    """W and s of the lse; exactly -inf where a row is empty. [rows]."""
    p = softmax.weights
    above = (p * softmax.growth).sum(axis=-1, keepdims=True) + softmax.sink_weight * softmax.sink_growth
    error = np.maximum(np.log1p(above), fall(softmax))
    error = np.where(_far(softmax), _by_logarithms(softmax), error)
    stored = stored_lse(softmax, policy)
    worst = error + normaliser(softmax, policy) + stored + policy.storage * np.abs(softmax.lse)
    mean = (softmax.scale * p * softmax.slope) @ softmax.key
    variance = _shared_variance(softmax)
    variance = variance + (mean**2 * softmax.query_variance).sum(axis=-1, keepdims=True)
    variance = variance + _normaliser_variance(softmax, policy)
    variance = variance + stored**2 / 3 + policy.storage**2 / 3 * softmax.lse**2
    # errors that all logits share: of truncated operands, and of the scale
    for moved in (softmax.drift, 2 * policy.accumulation * softmax.of_scale):
        variance = variance + (p * moved).sum(axis=-1, keepdims=True) ** 2
    floor = policy.underflow
    worst = worst * policy.second_order + floor
    rms = np.where(softmax.unpredicted, worst, np.sqrt(variance) + floor)
    return worst[:, 0], rms[:, 0]
