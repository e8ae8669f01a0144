"""W and s of every output, as spec/numerics.md derives them. Names follow its formulas.

W is a worst-case bound, s the predicted RMS error; both are absolute and per element.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.approximate import Approximation
from conformance.vectors.generate.draws import round_to_bits
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.problem import Array, Bools, Problem
from conformance.vectors.generate.sums import Ties, sum_variance, ties

Limits = tuple[Array, Array]  # W and s of one output

LARGEST_EXPONENT = 700.0  # beyond it the convex hull alone bounds the error, and exp overflows


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
    key: Array  # [kv_len, d_k]
    query_variance: Array  # [rows, d_k], errors that all keys of a row share
    scale: float
    top: Array  # [rows, 1]
    lse: Array  # [rows, 1], zero for an empty row
    ties: Ties

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
        return np.where(least > 0, least, 1.0)


def limits(
    problem: Problem, approximation: Approximation, policy: Policy, wanted: Iterable[str]
) -> dict[str, Limits]:
    """W and s of every wanted output, in the shape of the output with its rows reduced."""
    wanted = tuple(wanted)
    a = approximation
    full = {name: (np.zeros(x.shape), np.zeros(x.shape)) for name, x in _shapes(problem, a).items()}
    for b in range(problem.size):
        heads = []
        for h in range(problem.num_heads):
            query = _operand(problem, policy, b, h, "query", "w_q", "b_q", a.query[b, h])
            key = _operand(problem, policy, b, h // problem.group, "key", "w_k", "b_k", a.key[b, h])
            value = _operand(problem, policy, b, h // problem.group, "value", "w_v", "b_v", a.value[b, h])
            softmax = _softmax(problem, a, policy, b, h, query, key)
            for name, operand in (("present_key", key), ("present_value", value)):
                full[name][0][b, h // problem.group] = operand.worst
                full[name][1][b, h // problem.group] = np.sqrt(operand.variance)
            for name, compute in (("weights", _weights), ("lse", _lse)):
                if name in wanted:
                    full[name][0][b, h], full[name][1][b, h] = compute(softmax, policy)
            heads.append(_head(problem, a, policy, b, h, softmax, value))
        for i, (worst, rms) in enumerate(_outputs(problem, a, policy, b, heads)):
            place = b if problem.layer else (b, i)
            full["output"][0][place], full["output"][1][place] = worst, rms
    shown = {"output": a.output, "weights": a.weights, "lse": a.lse}
    return {name: _where_finite(full[name], shown.get(name)) for name in wanted}


def _shapes(problem: Problem, a: Approximation) -> dict[str, Array]:
    step = problem.group
    return {
        "output": a.output,
        "weights": a.weights,
        "lse": a.lse,
        "present_key": a.key[:, ::step],
        "present_value": a.value[:, ::step],
    }


def _where_finite(pair: Limits, shown: Array | None) -> Limits:
    if shown is None:
        return pair
    finite = np.isfinite(shown)
    return np.where(finite, pair[0], 0.0), np.where(finite, pair[1], 0.0)


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0.0)


def _operand(
    problem: Problem, policy: Policy, b: int, i: int, name: str, weight: str, bias: str, value: Array
) -> Operand:
    """E_Q, E_K or E_V and its variance: zero for what was given, the projection's error for what was projected."""
    value = _finite(value)
    exact_bits = (
        int(np.array_equal(round_to_bits(value, policy.operand_bits), value)) if policy.operand else 1
    )
    worst, variance = np.zeros(value.shape), np.zeros(value.shape)
    if problem.layer:
        x, w = _finite(problem.inputs[name][b]), problem.inputs[weight][i]
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
        sum_variance(policy.accumulation, width, squares, product)
        + rounded * policy.operand**2 / 3 * squares
        + policy.storage**2 / 3 * (product**2 * has_bias + result**2)
        + policy.underflow**2
    )
    return worst, variance


def _softmax(
    problem: Problem, a: Approximation, policy: Policy, b: int, h: int, query: Operand, key: Operand
) -> Softmax:
    """D and T of the exponents of one head."""
    u_a, u_l = policy.accumulation, policy.stored_logits
    c, d_k = abs(problem.multiplier), problem.d_k
    visible = problem.visible[b, h] & np.isfinite(a.lse[b, h])[:, None] & np.isfinite(a.logits[b, h])
    q, k = query.value, key.value
    abs_q, abs_k = np.abs(q), np.abs(k)
    scaled = problem.multiplier * (q @ k.T)
    size = c * abs_q @ abs_k.T
    squares = c**2 * q**2 @ (k**2).T
    operands = 1 + key.rounded if policy.operand else 0  # a query scaled first is no longer exact
    worst = (
        c * (abs_q @ key.worst.T + query.worst @ abs_k.T + query.worst @ key.worst.T)
        + ((d_k + 5) * u_a + operands * policy.operand + u_l) * size
        + u_l * np.abs(scaled)
        + c * d_k * policy.accumulation_underflow
        + 2 * max(1.0, c) * policy.underflow * policy.eager
    )
    variance = (
        c**2 * q**2 @ key.variance.T
        + sum_variance(u_a, d_k, squares, scaled)
        + operands * policy.operand**2 / 3 * squares
        + 2 * u_l**2 / 3 * scaled**2
    )
    logits, slope = scaled, np.ones_like(scaled)
    if problem.softcap is not None:
        cap = problem.softcap
        logits = cap * np.tanh(scaled / cap)
        slope = 1 - np.tanh(scaled / cap) ** 2
        entering = worst + (u_l + 2 * u_a) * np.abs(scaled)
        steepest = 1 - np.tanh(np.maximum(np.abs(scaled) - entering, 0.0) / cap) ** 2
        worst = steepest * entering + (8 * u_a + 2 * u_l) * np.abs(logits)
        variance = (
            slope**2 * (variance + u_l**2 / 3 * scaled**2) + ((4 * u_a) ** 2 / 3 + 2 * u_l**2 / 3) * logits**2
        )
    if problem.has_bias:
        bias = _finite(problem.bias[b, h])
        logits = logits + bias
        worst = worst + (u_l + u_a) * np.abs(logits) + u_l * np.abs(bias)
        variance = variance + u_l**2 / 3 * logits**2
    top, lse = (_finite(x) for x in (a.top[b, h], a.lse[b, h][:, None]))
    logits = np.where(visible, logits, 0.0)
    fall = logits - top
    exponential = 4 * u_a + u_l  # u_exp: the exponential itself, stored
    worst = worst + 2 * u_a * (np.abs(logits) + np.abs(top)) + u_l * np.abs(fall) + exponential
    variance = variance + (u_a**2 * (logits**2 + fall**2) + u_l**2 * fall**2 + (2 * u_a) ** 2 + u_l**2) / 3
    sink_weight, sink_exponent, sink_variance = np.zeros_like(top), np.zeros_like(top), np.zeros_like(top)
    if a.sinks is not None:
        sink = float(a.sinks[h])
        sink_weight = np.where(visible.any(axis=-1, keepdims=True), np.exp(np.minimum(sink - lse, 0.0)), 0.0)
        sink_exponent = 2 * u_a * (abs(sink) + np.abs(top)) + u_l * np.abs(sink - top) + exponential
        sink_variance = (u_l**2 * (sink - top) ** 2 + u_a**2 * sink**2 + (2 * u_a) ** 2 + u_l**2) / 3
    return Softmax(
        weights=np.where(visible, _finite(a.weights[b, h]), 0.0),
        visible=visible,
        count=np.maximum(visible.sum(axis=-1, keepdims=True), 1).astype(np.float64),
        exponent=np.where(visible, worst, 0.0),
        variance=np.where(visible, variance, 0.0),
        sink_weight=sink_weight,
        sink_exponent=sink_exponent,
        sink_variance=sink_variance,
        slope=slope,
        key=k,
        query_variance=query.variance + u_l**2 / 3 * q**2,
        scale=c,
        top=top,
        lse=lse,
        ties=ties(scaled, _finite(problem.bias[b, h]), visible),
    )


@dataclass(frozen=True)
class Head:
    """Contribution of one head to the output, already through its part of W^O where there is one. [rows, width]."""

    worst: Array
    variance: Array
    floor: Array  # what underflow may cost, kept out of the quadrature
    magnitude: Array  # |Z| |W_O|
    squares: Array  # Z^2 W_O^2
    some: Array  # [rows, 1], 0 where the row is empty: its output is exactly zero


def _head(
    problem: Problem, a: Approximation, policy: Policy, b: int, h: int, softmax: Softmax, value: Operand
) -> Head:
    """The error of P U, where U = V W_O."""
    u_a, u_l, u_s = policy.accumulation, policy.stored_logits, policy.storage
    p, v = softmax.weights, value.value
    w_o = problem.inputs["w_o"][h] if problem.layer else np.eye(problem.d_v)
    abs_w, square_w = np.abs(w_o), w_o**2
    z = p @ v
    u = v @ w_o
    average = p @ u
    n = softmax.count
    operands = 1 + value.rounded if policy.operand else 0
    absolute = p @ np.abs(v)
    worst = (
        _logit_error(softmax, u, average)
        + (n * u_a + 2 * u_l + 4 * u_a) * np.abs(average)
        + u_s * (p @ np.abs(u))
        + (p @ value.worst) @ abs_w
        + (1.25 * n * u_a + operands * policy.operand) * (absolute @ abs_w)
    )
    moved = _logit_variance(softmax, u, average)
    common = sum_variance(
        u_a, n * softmax.ties.coherence, (p**2).sum(axis=-1, keepdims=True), np.ones_like(n)
    )
    products = p**2 @ v**2
    variance: Array = (
        moved
        + (common + (2 * u_a) ** 2 + 2 * u_l**2 / 3) * average**2
        + u_s**2 / 3 * softmax.ties.spread(p[:, :, None] * u[None])
        + (p**2 @ value.variance) @ square_w
        + (
            sum_variance(u_a, n * softmax.ties.coherence, products, z)
            + operands * policy.operand**2 / 3 * products
        )
        @ square_w
    )
    seen = softmax.visible.astype(np.float64)
    floor = (1 + policy.eager) * policy.underflow * (seen @ np.abs(u))
    floor = floor + policy.accumulation_underflow * (seen.sum(axis=-1, keepdims=True) + seen @ np.abs(u))
    if problem.layer:
        worst = worst + u_s * (np.abs(z) @ abs_w)
        variance = variance + u_s**2 / 3 * (z**2 @ square_w)
        floor = floor + policy.underflow * abs_w.sum(axis=0)
    some = seen.max(axis=-1, keepdims=True, initial=0.0)
    return Head(worst, variance, floor, np.abs(z) @ abs_w, z**2 @ square_w, some)


def _logit_error(softmax: Softmax, u: Array, average: Array) -> Array:
    """Errors of the logits act on U less its average, and never beyond the convex hull of U."""
    p, total = softmax.weights, softmax.denominator
    worst = np.empty_like(average)
    for i in range(p.shape[0]):
        deviation = np.abs(u - average[i])  # [kv_len, width]
        seen = softmax.visible[i]
        hull = deviation[seen].max(axis=0, initial=0.0)
        moved = (p[i] * softmax.growth[i])[seen] @ deviation[seen]
        if softmax.sink_weight[i, 0] > 0:
            hull = np.maximum(hull, np.abs(average[i]))
            moved = moved + softmax.sink_weight[i, 0] * softmax.sink_growth[i, 0] * np.abs(average[i])
        worst[i] = np.minimum(moved / total[i], hull)
    return worst


def _logit_variance(softmax: Softmax, u: Array, average: Array) -> Array:
    """Independent errors of the logits, and those of the query, which move all keys of a row alike."""
    p = softmax.weights
    deviation = p[:, :, None] * (u[None] - average[:, None])  # [rows, kv_len, width]
    variance = softmax.ties.spread(deviation * np.sqrt(softmax.variance)[:, :, None])
    variance = variance + softmax.sink_weight**2 * softmax.sink_variance * average**2
    if softmax.query_variance.any():
        for i in range(p.shape[0]):
            keys = (softmax.scale * softmax.slope[i])[:, None] * softmax.key  # [kv_len, d_k]
            covariance = keys.T @ deviation[i]  # [d_k, width]
            variance[i] += softmax.query_variance[i] @ covariance**2
    return variance


def _outputs(problem: Problem, a: Approximation, policy: Policy, b: int, heads: list[Head]) -> list[Limits]:
    """W and s of the operation's output: one array for each head, or one for the layer."""
    u_a, u_s = policy.accumulation, policy.storage
    second = 1 + 4 * u_s  # products of two roundings
    if not problem.layer:
        limits = []
        for head, exact in zip(heads, a.output[b], strict=True):
            output = _finite(exact)
            floor = head.floor + policy.underflow * head.some
            worst = (head.worst + u_s * np.abs(output)) * second + floor
            limits.append((worst, np.sqrt(head.variance + u_s**2 / 3 * output**2) + floor))
        return limits
    output = _finite(a.output[b])
    has_bias = "b_o" in problem.inputs
    bias = problem.inputs["b_o"] if has_bias else np.zeros(output.shape[-1])
    product = output - bias
    terms = problem.num_heads * problem.d_v
    operands = 2 if policy.operand else 0
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
        + sum_variance(u_a, terms, squares, product)
        + operands * policy.operand**2 / 3 * squares
        + u_s**2 / 3 * (product**2 * has_bias + output**2)
    )
    return [(worst * second + floor, np.sqrt(variance) + floor)]


def _normaliser(softmax: Softmax, policy: Policy) -> Array:
    """rho: relative error of the denominator and of the division by it. [rows, 1]."""
    return softmax.count * policy.accumulation + 6 * policy.accumulation + 2 * policy.stored_logits


def _normaliser_variance(softmax: Softmax, policy: Policy) -> Array:
    squares = (softmax.weights**2).sum(axis=-1, keepdims=True)
    count = softmax.count * softmax.ties.coherence
    total = sum_variance(policy.accumulation, count, squares, np.ones_like(squares))
    return total + (3 * policy.accumulation) ** 2 + 2 * policy.stored_logits**2 / 3


def _shared_variance(softmax: Softmax) -> Array:
    """Variance of the log of the denominator by independent errors of the logits. [rows, 1]."""
    spread = softmax.ties.spread((softmax.weights * np.sqrt(softmax.variance))[:, :, None])
    return spread + softmax.sink_weight**2 * softmax.sink_variance


def _stored_lse(softmax: Softmax, policy: Policy) -> Array:
    """What storing the maximum and the logarithm of the sum costs the lse. [rows, 1]."""
    u_a = policy.accumulation
    return 2 * u_a * np.abs(softmax.lse - softmax.top) + u_a * (np.abs(softmax.top) + np.abs(softmax.lse))


def _weights(softmax: Softmax, policy: Policy) -> Limits:
    """W and s of the weights; exactly zero where masked."""
    p, growth = softmax.weights, softmax.growth
    moved = p * growth
    others = moved.sum(axis=-1, keepdims=True) - moved + softmax.sink_weight * softmax.sink_growth
    error = np.minimum(p * ((1 - p) * growth + others) / softmax.denominator, np.maximum(p, 1 - p))
    error = np.where(softmax.visible, error, 0.0)
    stored = _stored_lse(softmax, policy)
    rho = _normaliser(softmax, policy) + stored + 2 * policy.accumulation * np.abs(softmax.lse)
    floor = softmax.visible * (1 + policy.eager) * policy.underflow
    worst = (error + (rho + policy.storage) * (p + error)) * (1 + 4 * policy.storage) + floor
    shared = _shared_variance(softmax)
    variance = p**2 * ((1 - 2 * p) * softmax.variance + shared)
    keys = softmax.scale * softmax.slope[:, :, None] * softmax.key[None]  # [rows, kv_len, d_k]
    centred = keys - np.einsum("nm,nmd->nd", p, keys)[:, None]
    variance = np.maximum(variance, 0.0) + p**2 * np.einsum("nmd,nd->nm", centred**2, softmax.query_variance)
    variance = variance + p**2 * (
        _normaliser_variance(softmax, policy) + policy.storage**2 / 3 + stored**2 / 3
    )
    return worst, np.sqrt(variance) + floor


def _lse(softmax: Softmax, policy: Policy) -> Limits:
    """W and s of the lse; exactly -inf where a row is empty. [rows]."""
    p = softmax.weights
    above = (p * softmax.growth).sum(axis=-1, keepdims=True) + softmax.sink_weight * softmax.sink_growth
    least = np.maximum(softmax.denominator, np.exp(-LARGEST_EXPONENT))
    error = np.maximum(np.log1p(above), -np.log(np.minimum(least, 1.0)))
    stored = _stored_lse(softmax, policy)
    worst = error + _normaliser(softmax, policy) + stored + policy.storage * np.abs(softmax.lse)
    keys = softmax.scale * softmax.slope[:, :, None] * softmax.key[None]
    mean = np.einsum("nm,nmd->nd", p, keys)
    variance = _shared_variance(softmax)
    variance = variance + (mean**2 * softmax.query_variance).sum(axis=-1, keepdims=True)
    variance = variance + _normaliser_variance(softmax, policy)
    variance = variance + stored**2 / 3 + policy.storage**2 / 3 * softmax.lse**2
    floor = policy.underflow
    return (worst * (1 + 4 * policy.storage) + floor)[:, 0], (np.sqrt(variance) + floor)[:, 0]
