"""Worst-case errors of one head's gradients, as spec/bounds.md derives them; the names follow its formulas."""

from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.bounds.average_error import head_of
from conformance.vectors.generate.bounds.projection_error import Operand
from conformance.vectors.generate.bounds.softmax import Softmax, recomputed
from conformance.vectors.generate.bounds.weights_lse import normaliser, weights_error, weights_floor
from conformance.vectors.generate.gradients.backward import Backward
from conformance.vectors.generate.normal_form import Array, Problem
from conformance.vectors.generate.policies import Policy


@dataclass(frozen=True)
class HeadErrors:
    """What one head's gradients may err, stored; arrays as in Backward without their first two axes."""

    logits: Array  # [rows, kv_len], E_dS
    sinks: Array  # [rows]
    query: Array  # [rows, d_k]
    key: Array  # [kv_len, d_k]
    value: Array  # [kv_len, d_v]
    output: Array  # [rows, d_v], of the head itself, which the gradient of w_o is made of


@dataclass(frozen=True)
class _Logits:
    """Errors of the gradient of the logits, apart: they reach the gradient of the query in different ways."""

    balanced: Array  # E0, [rows, kv_len]: adds up to zero in each row
    own: Array  # E1, [rows, kv_len]: each on its own
    common: Array  # eta, [rows, 1]: the error of Delta but for what is in E0
    passed: Array  # A + sum P G, [rows, 1]: the error of Delta that is in E0, which a sink has as well
    above: Array  # [rows, kv_len], the largest that P may be
    floor: Array  # [rows, kv_len], underflow

    @property
    def total(self) -> Array:
        """E_dS."""
        return self.balanced + self.own + self.above * self.common + self.floor


def head_errors(
    problem: Problem,
    policy: Policy,
    d: Backward,
    place: tuple[int, int],
    softmax: Softmax,
    operands: tuple[Operand, Operand, Operand],
    head: Array,
) -> HeadErrors:
    """Errors of the gradients of one head; `head` is E_g, that of the gradient of its output."""
    query, key, value = operands
    u_a, u_l, u_s, u_o = policy.accumulation, policy.stored_logits, policy.storage, policy.operand
    eta, more = policy.underflow, policy.second_order
    c = abs(problem.multiplier)
    seen, gradient = softmax.visible.astype(np.float64), np.abs(d.logits[place])
    abs_g, abs_k, abs_q = np.abs(d.head[place]), np.abs(key.value), np.abs(query.value)
    rows, keys = seen.shape
    rho = normaliser(softmax, policy) + recomputed(softmax, policy)
    error = _logits(problem, policy, d, place, softmax, value, head)

    slope, slope_error = softmax.slope, _slope_error(problem, softmax, policy)
    steps = 4 if problem.softcap is not None else 2  # multiplied by the scale, and by the slope and the cap
    rounded = (2 * u_a + steps * u_l) * gradient * slope + gradient * slope_error
    # what is stored after the scale, a gradient or query and key, loses 1 / c of what it then is
    after_scale = max(1.0, 1 / c if c else 1.0)
    rounded = rounded + eta * (1 + policy.eager) * after_scale * seen
    steepest = np.minimum(slope + slope_error, 1.0)
    scores = error.total * steepest + rounded
    size = gradient * slope

    sloped = slope[..., None] * key.value  # [rows, kv_len, d_k]
    mean = np.einsum("nm,nmd->nd", softmax.weights, sloped)  # kappa
    for_query = (
        np.einsum("nm,nmd->nd", error.balanced, np.abs(sloped - mean[:, None]))
        + (error.own * steepest + error.floor + rounded) @ abs_k
        # where the slope is off as well, what balances does so no more
        + ((error.balanced + error.above * error.common) * (steepest - slope)) @ abs_k
        + error.common * np.abs(mean)
        + ((keys + 2) * u_a + 2 * u_o + 2 * u_l) * size @ abs_k
        + (size + scores) @ (key.worst + eta * policy.eager * after_scale)
    )
    for_key = (
        scores.T @ abs_q
        + ((rows * problem.group + 2) * u_a + 2 * u_o + 2 * u_l) * size.T @ abs_q
        + (size + scores).T @ (query.worst + eta * policy.eager * after_scale)
    )
    for_value = (
        (error.above - softmax.weights + (rho + u_s) * error.above).T @ abs_g
        + error.above.T @ head
        + (rows * problem.group * u_a + 2 * u_o) * softmax.weights.T @ abs_g
        + (weights_floor(policy) + policy.accumulation_underflow) * seen.T @ abs_g
    )
    # stored before the scale as well, or before its root
    floor = eta * (1 + policy.eager * max(c, np.sqrt(c)))
    some, reached = seen.max(axis=1, initial=0.0)[:, None], seen.max(axis=0, initial=0.0)[:, None]
    output = np.zeros(d.head[place].shape)
    if problem.layer:  # only the gradient of w_o is made of it
        of_output = head_of(policy, softmax, value, None)
        output = (of_output.worst + u_s * np.abs(softmax.weights @ value.value)) * more
        output = output + of_output.floor + eta * some
    return HeadErrors(
        logits=(error.total + u_s * gradient) * more,
        sinks=_sink_error(softmax, policy, d, place, error.common + error.passed, rho)[:, 0] * more,
        query=(c * for_query + u_s * np.abs(d.query[place])) * more + floor * some,
        key=(c * for_key + u_s * np.abs(d.key[place])) * more + floor * reached,
        value=(for_value + u_s * np.abs(d.value[place])) * more + eta * reached,
        output=output,
    )


def _logits(
    problem: Problem,
    policy: Policy,
    d: Backward,
    place: tuple[int, int],
    softmax: Softmax,
    value: Operand,
    head: Array,
) -> _Logits:
    """Errors of P (dP - Delta), or of P (dP - Delta + the cotangent of the lse), whose two parts may be apart."""
    u_a, u_l, u_s, u_o = policy.accumulation, policy.stored_logits, policy.storage, policy.operand
    eta, eta_a, width = policy.underflow, policy.accumulation_underflow, problem.d_v
    p, seen = softmax.weights, softmax.visible.astype(np.float64)
    products, delta = np.abs(d.products[place]), np.abs(d.delta[place])
    abs_g, abs_v = np.abs(d.head[place]), np.abs(value.value)
    rho = normaliser(softmax, policy) + recomputed(softmax, policy)
    error = weights_error(softmax)
    above = p + error
    away = np.abs(d.products[place] - d.delta[place]) * seen
    of_lse = np.abs(d.of_lse[place])
    with_lse = problem.inputs.get("grad_lse") is not None

    # A: what errors of the logits do to Delta, at most as much as the products lie apart
    moved, sink = softmax.moved
    moved = (moved * away).sum(axis=-1, keepdims=True) + sink * delta
    apart = away.max(axis=-1, keepdims=True, initial=0.0)
    apart = np.maximum(apart, delta * (softmax.sink_weight > 0))
    with np.errstate(over="ignore"):
        shift = np.minimum(moved / softmax.denominator, apart)

    gradient = np.abs(d.logits[place])
    if with_lse:
        away = away + of_lse * seen
        gradient = p * away
    operand = (head @ abs_v.T + (abs_g + head) @ value.worst.T) * seen
    formed = ((width * u_a + 2 * u_o) * abs_g @ abs_v.T + 2 * u_l * products + width * eta_a) * seen
    formed = formed + eta * policy.eager * seen
    balanced = error * away + rho * gradient
    passed = shift + (p * operand).sum(axis=-1, keepdims=True)
    balanced = balanced + above * (operand + passed)
    own = above * (formed + (2 * u_a + u_l) * (products + delta + of_lse) + u_l * away)
    own = own + (4 * u_a + u_s + 3 * u_l) * gradient

    # Delta may be the sum of P dP, or of the stored output times its gradient: its logits were another pass
    summed = (rho + 2 * u_l) * delta + (softmax.count * u_a + 2 * u_l) * (p * products).sum(-1, keepdims=True)
    through = (abs_g * (p @ abs_v)).sum(axis=-1, keepdims=True)
    output = (abs_g * np.abs(p @ value.value)).sum(axis=-1, keepdims=True)
    terms = (1.25 * softmax.count + width) * u_a + 2 * u_o
    stored = (u_s + rho) * output + (terms + u_s) * through + 2 * shift
    # underflow of the weights, of their products and of Delta; of the weights, of their average and of the output
    lost = weights_floor(policy)
    summed = summed + policy.eager * (seen * (lost * products + eta)).sum(axis=-1, keepdims=True) + eta
    stored = stored + (abs_g * (lost * seen @ abs_v + 2 * eta)).sum(axis=-1, keepdims=True)
    common = np.maximum(summed, stored) + (p * formed).sum(axis=-1, keepdims=True)
    # taken from Delta, or times the weights on its own; cast to the dtype where everything is stored
    common = common + (rho + 2 * u_a + 3 * u_l) * of_lse + 2 * eta * with_lse
    floor = (
        eta * (1 + policy.eager * (2 + with_lse)) + (policy.eager * lost + eta_a) * away + 2 * eta_a
    ) * seen
    some = seen.max(axis=-1, keepdims=True, initial=0.0)
    return _Logits(balanced, own, common * some, passed * some, above, floor)


def _slope_error(problem: Problem, softmax: Softmax, policy: Policy) -> Array:
    """E_t: the error of 1 - tanh^2, zero without a softcap."""
    if problem.softcap is None:
        return np.zeros_like(softmax.slope)
    steep = np.sqrt(np.maximum(1 - softmax.slope, 0.0))  # |tanh|
    enters = softmax.entering / problem.softcap
    # a tanh that is 5 u off moves its square by 10 u, which is rounded itself
    moved = 2 * steep * softmax.slope * enters + 2 * enters**2
    own = 11 * policy.accumulation + 3 * policy.stored_logits
    return np.where(softmax.visible, np.minimum(moved + own, 1.0), 0.0)


def _sink_error(
    softmax: Softmax, policy: Policy, d: Backward, place: tuple[int, int], of_delta: Array, rho: Array
) -> Array:
    """The sink as one more key whose product is zero; `of_delta` is the error of Delta. [rows, 1]."""
    of_lse, growth = np.abs(d.of_lse[place]), softmax.sink_growth
    p = softmax.sink_weight * (softmax.visible.any(axis=-1, keepdims=True) | (of_lse > 0))
    moved, sink = softmax.moved
    moved = moved.sum(axis=-1, keepdims=True)
    own = np.where(softmax.deep, (1 - p) * sink + p * moved, p * ((1 - p) * growth + moved))
    error = np.minimum(own / softmax.denominator, np.maximum(p, 1 - p)) * (p > 0)
    away = np.abs(d.delta[place]) + of_lse
    rounded = rho + 4 * policy.accumulation + policy.storage + 3 * policy.stored_logits
    eta, eta_a = policy.underflow, policy.accumulation_underflow
    floor = eta * (1 + policy.eager) + (policy.eager * weights_floor(policy) + eta_a) * away + 2 * eta_a
    return error * away + (p + error) * of_delta + rounded * p * away + floor * (p > 0)
