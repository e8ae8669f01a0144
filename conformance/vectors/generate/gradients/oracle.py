"""Golden gradients in ball arithmetic: grad_output value^T exactly, the softmax and what follows it in balls."""

from collections.abc import Callable, Iterable
from typing import Any

import flint
import numpy as np

from conformance.vectors.generate.ball_rounding import split
from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.names import has_structural_zero, sums_whole_rows
from conformance.vectors.generate.normal_form import Array, Problem
from conformance.vectors.generate.oracle import (
    Pair,
    Weights,
    average,
    decide,
    projections,
    scale_of,
    softmax,
    split_all,
)


def golden_gradients(
    problem: Problem,
    approximation: Approximation,
    bias_shape: tuple[int, ...],
    wanted: Iterable[str],
    parted: Callable[[Any], tuple[float, float]] = split,
) -> dict[str, Pair]:
    """Hi and lo of every wanted gradient, batch axes flattened.

    Raises:
        ValueError: a gradient cannot be decided.
    """
    names = tuple(wanted)

    def compute() -> dict[str, Pair]:
        total = _Sums(problem, bias_shape)
        for b in range(problem.size):
            _entry(problem, approximation, b, total)
        pairs = {}
        for name in names:
            balls = total.balls[name]
            if has_structural_zero(problem, name, bias_shape):
                balls = np.full(balls.shape, flint.arb(0), dtype=object)
            pairs[name] = split_all(balls, np.zeros(balls.shape), parted)
        return pairs

    return decide(compute)[0]


class _Sums:
    """Every gradient so far, as object arrays of balls."""

    def __init__(self, problem: Problem, bias_shape: tuple[int, ...]) -> None:
        shapes = {
            name: x.shape for name, x in problem.inputs.items() if name not in ("past_key", "past_value")
        }
        if problem.has_bias:
            shapes["attn_bias"] = bias_shape
        self.balls = {name: np.full(shape, flint.arb(0), dtype=object) for name, shape in shapes.items()}
        self.batch = problem.batch
        self.whole_rows = "grad_lse" in problem.inputs and "sinks" not in problem.inputs
        self.bias_shape = bias_shape

    def add(self, name: str, place: Any, balls: Any) -> None:
        """Adds to a part of one gradient."""
        self.balls[name][place] = self.balls[name][place] + balls

    def add_logits(self, b: int, h: int, gradient: Any) -> None:
        """Sums the gradient of the logits of one head over the axes that the bias broadcasts over (GRAD-5)."""
        rank = len(self.bias_shape)
        entry = (*np.unravel_index(b, self.batch), h)[-(rank - 2) :] if rank > 2 else ()
        place = tuple(i if size > 1 else 0 for i, size in zip(entry, self.bias_shape, strict=False))
        for axis, size in ((0, self.bias_shape[-2]), (1, self.bias_shape[-1])):
            if size == 1:
                gradient = gradient.sum(axis=axis, keepdims=True)
        self.add("attn_bias", place, gradient)


def _entry(problem: Problem, a: Approximation, b: int, total: _Sums) -> None:
    """Adds the gradients of one batch entry."""
    queries = projections(problem, b, "query", "w_q", "b_q")
    keys = projections(problem, b, "key", "w_k", "b_k")
    values = projections(problem, b, "value", "w_v", "b_v")
    cotangent = problem.inputs["grad_output"][b]
    d_queries, d_keys, d_values = [], [None] * problem.num_kv_heads, [None] * problem.num_kv_heads
    for h in range(problem.num_heads):
        g = h // problem.group
        head = Exact.of(cotangent if problem.layer else cotangent[h])
        if problem.layer:
            head = head @ Exact.of(problem.inputs["w_o"][h]).transposed()
        raw = queries[h] @ keys[g].transposed()
        weights = softmax(problem, a, b, h, raw)
        of_lse = problem.inputs["grad_lse"][b, h] if "grad_lse" in problem.inputs else None
        rows_of_lse = _sums_of_rows(problem, a, b, h) if total.whole_rows else None
        d_logits, d_sinks = of_logits(problem, weights, head @ values[g].transposed(), of_lse)
        if problem.has_bias:
            one_column = total.bias_shape[-1] == 1 and rows_of_lse is not None
            total.add_logits(b, h, np.asarray(rows_of_lse)[:, None] if one_column else d_logits)
        if d_sinks is not None:
            total.add("sinks", h, d_sinks)
        if rows_of_lse is not None and _whole_rows_of_key_bias(problem):
            of_rows = rows_of_lse[:, None] * queries[h].balls() * scale_of(problem)
            total.add("b_k", g, of_rows.sum(axis=0))
        slope = slope_of(problem, raw)
        d_scores = d_logits if slope is None else d_logits * slope
        factor = scale_of(problem)
        flat = slope is None and of_lse is None and "sinks" not in problem.inputs
        rows = _matrix(d_scores) * (keys[g].centred()[0] if flat else keys[g]).matrix()
        d_queries.append(_array(rows) * factor)
        new = slice(problem.kv_len - problem.inputs["key"].shape[-2], None)
        d_key = (_array(_matrix(d_scores).transpose() * queries[h].matrix()) * factor)[new]
        p = np.array(
            [[weights.weight(i, j) for j in range(problem.kv_len)] for i in range(len(problem.rows))]
        )
        p = p.reshape(len(problem.rows), problem.kv_len)
        d_value = _array(_matrix(p).transpose() * head.matrix())[new]
        if "b_v" in problem.inputs:
            seen = problem.visible[b, h].any(axis=-1)
            total.add(
                "b_v", g, head.balls()[seen].sum(axis=0) if sums_whole_rows(problem) else d_value.sum(axis=0)
            )
        d_keys[g] = d_key if d_keys[g] is None else d_keys[g] + d_key
        d_values[g] = d_value if d_values[g] is None else d_values[g] + d_value
        if problem.layer:
            z = average(problem, b, h, weights, values[g])
            total.add("w_o", h, _array(_matrix(z).transpose() * Exact.of(cotangent).matrix()))
    for name, heads in (("query", d_queries), ("key", d_keys), ("value", d_values)):
        for i, gradient in enumerate(heads):
            _project(problem, b, name, i, gradient, total)
    if "b_o" in problem.inputs:
        total.add("b_o", ..., Exact.of(cotangent).balls().sum(axis=0))


def _whole_rows_of_key_bias(problem: Problem) -> bool:
    """Whether the gradient of b_k sums the gradients of the logits of whole rows."""
    spoilt = "sinks" in problem.inputs or "past_key" in problem.inputs or problem.softcap is not None
    return "b_k" in problem.inputs and not spoilt


def _sums_of_rows(problem: Problem, a: Approximation, b: int, h: int) -> Any:
    """What the gradients of the logits of a row add up to without a sink: the cotangent of its lse, exactly. [rows]."""
    found = np.where(np.isfinite(a.lse[b, h]), problem.inputs["grad_lse"][b, h], 0.0)
    return np.array([flint.arb(float(x)) for x in found], dtype=object).reshape(found.shape)


def _project(problem: Problem, b: int, name: str, i: int, gradient: Any, total: _Sums) -> None:
    """One head's gradient, through the projection if there is one (GRAD-10)."""
    if not problem.layer:
        total.add(name, (b, i), gradient)
        return
    weight, bias = f"w_{name[0]}", f"b_{name[0]}"
    matrix = Exact.of(problem.inputs[weight][i])
    total.add(name, b, _array(_matrix(gradient) * matrix.transposed().matrix()))
    x = Exact.of(problem.inputs[name][b]).transposed()
    total.add(weight, i, _array(x.matrix() * _matrix(gradient)))
    if bias == "b_k" and "grad_lse" in problem.inputs and _whole_rows_of_key_bias(problem):
        return
    if bias in problem.inputs and bias != "b_v":
        total.add(bias, i, gradient.sum(axis=0))


def of_logits(problem: Problem, weights: Weights, products: Exact, of_lse: Array | None) -> tuple[Any, Any]:
    """P (dP - sum P dP) of one head, with the cotangent of the lse where there is one; and the gradient of its sink.

    Without a sink dP is taken relative to one of the keys seen, so that a row with one key gives exactly zero.
    """
    n, m = len(problem.rows), problem.kv_len
    gradient = np.full((n, m), flint.arb(0), dtype=object)
    sunk = "sinks" in problem.inputs
    d_sinks = flint.arb(0)
    for i in range(n):
        seen = [j for j in range(m) if weights.exponentials[i][j] != 0]
        more = flint.arb(0) if of_lse is None or not np.isfinite(of_lse[i]) else flint.arb(float(of_lse[i]))
        if not seen:
            d_sinks += weights.sinks[i] / weights.totals[i] * more  # MASK-16: the lse is the sink
            continue
        p = [weights.weight(i, j) for j in seen]
        moved = [products.ball(i, j) if sunk else products.difference(i, j, seen[0]) for j in seen]
        mean = sum((x * y for x, y in zip(p, moved, strict=True)), flint.arb(0))
        for j, x, y in zip(seen, p, moved, strict=True):
            gradient[i, j] = x * (y - mean + more)
        d_sinks -= weights.sinks[i] / weights.totals[i] * (mean - more)
    return gradient, d_sinks if sunk else None


def slope_of(problem: Problem, raw: Exact) -> Any:
    """1 - tanh^2 of every scaled product (GRAD-7); None without a softcap."""
    if problem.softcap is None:
        return None
    factor, cap = scale_of(problem), flint.arb(problem.softcap)
    slope = np.empty((len(problem.rows), problem.kv_len), dtype=object)
    for i, j in np.ndindex(slope.shape):
        slope[i, j] = (factor * raw.ball(i, j) / cap).cosh() ** -2
    return slope


def _matrix(balls: Any) -> Any:
    return flint.arb_mat(*balls.shape, list(balls.ravel()))


def _array(matrix: Any) -> Any:
    array = np.empty((matrix.nrows(), matrix.ncols()), dtype=object)
    array.ravel()[:] = matrix.entries()
    return array
