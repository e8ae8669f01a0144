"""The golden values, in ball arithmetic: projections and q k^T exactly, the softmax onward in balls."""

from collections.abc import Iterable, Mapping
from typing import Any

import flint
import numpy as np

from conformance.vectors.generate.approximate import Approximation
from conformance.vectors.generate.balls import UndecidedError, split
from conformance.vectors.generate.exact import Exact
from conformance.vectors.generate.problem import Array, Problem

FIRST_BITS = 192
LAST_BITS = 12288

Pair = tuple[Array, Array]


def golden(
    problem: Problem, approximation: Approximation, wanted: Iterable[str]
) -> tuple[dict[str, Pair], int]:
    """Hi and lo of every wanted output, and the precision in bits that decided them.

    Raises:
        ValueError: an output cannot be decided: its exact value lies where two numbers of a dtype meet.
    """
    bits = FIRST_BITS
    while bits <= LAST_BITS:
        flint.ctx.prec = bits
        try:
            return _decided(problem, approximation, tuple(wanted)), bits
        except UndecidedError:
            bits *= 2
    raise ValueError(f"an output is not decided at {LAST_BITS} bits")


def _decided(problem: Problem, approximation: Approximation, wanted: tuple[str, ...]) -> dict[str, Pair]:
    outputs = {
        "output": np.empty(approximation.output.shape, dtype=object),
        "weights": np.empty(approximation.weights.shape, dtype=object),
        "lse": np.empty(approximation.lse.shape, dtype=object),
    }
    present: dict[str, list[list[Array]]] = {"present_key": [], "present_value": []}
    for b in range(problem.size):
        keys = _projections(problem, b, "key", "w_k", "b_k")
        values = _projections(problem, b, "value", "w_v", "b_v")
        queries = _projections(problem, b, "query", "w_q", "b_q")
        present["present_key"].append([key.balls() for key in keys])
        present["present_value"].append([value.balls() for value in values])
        heads = []
        for h in range(problem.num_heads):
            g = h // problem.group
            weights, lse, head = _head(problem, approximation, b, h, queries[h], keys[g], values[g])
            outputs["weights"][b, h], outputs["lse"][b, h] = weights, lse
            heads.append(head)
        if problem.layer:
            outputs["output"][b] = _merge(problem, heads)
        else:
            for h, head in enumerate(heads):
                outputs["output"][b, h] = head
    shown: Mapping[str, Array] = {
        "output": approximation.output,
        "weights": approximation.weights,
        "lse": approximation.lse,
    }
    result = {name: _split_all(outputs[name], shown[name]) for name in shown if name in wanted}
    for name, per_batch in present.items():
        if name in wanted:
            balls = np.empty((problem.size, problem.num_kv_heads, *per_batch[0][0].shape), dtype=object)
            for b, per_head in enumerate(per_batch):
                for g, array in enumerate(per_head):
                    balls[b, g] = array
            result[name] = _split_all(balls, np.zeros(balls.shape))
    return result


def _projections(problem: Problem, b: int, name: str, weight: str, bias: str) -> list[Exact]:
    """The exact heads of one operand of one batch entry, the past in front."""
    x = problem.inputs[name][b]
    if problem.layer:
        rows = Exact.of(x)
        heads = []
        for i, matrix in enumerate(problem.inputs[weight]):
            head = rows @ Exact.of(matrix)
            if bias in problem.inputs:
                head = head.plus_row(Exact.of(problem.inputs[bias][i][None, :]))
            heads.append(head)
    else:
        heads = [Exact.of(matrix) for matrix in x]
    if f"past_{name}" in problem.inputs:
        heads = [Exact.of(problem.inputs[f"past_{name}"][b, i]).above(head) for i, head in enumerate(heads)]
    return heads


def _head(
    problem: Problem, approximation: Approximation, b: int, h: int, query: Exact, key: Exact, value: Exact
) -> tuple[Any, Any, Any]:
    """Balls of one head: weights [rows, kv_len], lse [rows], output [rows, d_v]."""
    n, m = problem.visible.shape[2:]
    raw = query @ key.transposed()
    factor = _scale(problem)
    sinks = problem.inputs.get("sinks")
    exponentials = [[flint.arb(0)] * m for _ in range(n)]
    totals = [flint.arb(1)] * n
    lse = np.full(n, flint.arb(0), dtype=object)
    finite_value = value.centred() if sinks is None else (value, None)
    for i in range(n):
        # a visible -inf logit weighs nothing; NaN and +inf are shown by the approximation alone
        seen = [j for j in range(m) if np.isfinite(approximation.logits[b, h, i, j])]
        if not seen or not np.isfinite(approximation.lse[b, h, i]):
            continue
        exponents, top = _exponents(problem, raw, factor, b, h, i, seen, approximation)
        total = flint.arb(0)
        for j, exponent in zip(seen, exponents, strict=True):
            exponentials[i][j] = exponent.exp()
            total += exponentials[i][j]
        if sinks is not None and np.isfinite(sinks[h]):
            total += (flint.arb(float(sinks[h])) - top).exp()
        totals[i] = total
        lse[i] = top + total.log()
    matrix = flint.arb_mat(n, m, [x for row in exponentials for x in row])
    centred, first = finite_value
    sums = (matrix * centred.matrix()).tolist() if n else []
    head = np.empty((n, problem.d_v), dtype=object)
    weights = np.empty((n, m), dtype=object)
    for i in range(n):
        empty = not problem.visible[b, h, i].any()
        for d in range(problem.d_v):
            average = sums[i][d] / totals[i]
            head[i, d] = average if first is None or empty else average + first[d]
        for j in range(m):
            weights[i, j] = exponentials[i][j] / totals[i]
    return weights, lse, head


def _scale(problem: Problem) -> Any:
    return flint.arb(problem.d_k).rsqrt() if problem.scale is None else flint.arb(problem.scale)


def _exponents(
    problem: Problem, raw: Exact, factor: Any, b: int, h: int, i: int, seen: list[int], a: Approximation
) -> tuple[list[Any], Any]:
    """Logits less the largest one, exactly zero between equal ones; and the largest logit."""
    top = max(seen, key=lambda j: float(a.logits[b, h, i, j]))
    bias = problem.bias[b, h, i]
    if problem.softcap is None:
        exponents = [
            factor * raw.difference(i, j, top) + (flint.arb(float(bias[j])) - flint.arb(float(bias[top])))
            for j in seen
        ]
        return exponents, factor * raw.ball(i, top) + flint.arb(float(bias[top]))
    cap = flint.arb(problem.softcap)
    cached: dict[int, Any] = {}
    infinite = {j: np.sign(a.raw[b, h, i, j]) for j in seen if np.isinf(a.raw[b, h, i, j])}

    def capped(j: int) -> Any:
        if j in infinite:  # the limit of tanh
            return cap * int(infinite[j]) * (1 if problem.multiplier > 0 else -1)
        number = raw.integer(i, j)
        if number not in cached:
            cached[number] = cap * (factor * raw.ball(i, j) / cap).tanh()
        return cached[number]

    exponents = [
        (flint.arb(0) if capped(j) is capped(top) else capped(j) - capped(top))
        + (flint.arb(float(bias[j])) - flint.arb(float(bias[top])))
        for j in seen
    ]
    return exponents, capped(top) + flint.arb(float(bias[top]))


def _merge(problem: Problem, heads: list[Any]) -> Any:
    """Concatenated heads times W^O, plus b_o: [rows, d_out]."""
    n, width = heads[0].shape[0], problem.inputs["w_o"].shape[2]
    output = np.full((n, width), flint.arb(0), dtype=object)
    if n == 0:
        return output
    total = flint.arb_mat(n, width)
    for head, matrix in zip(heads, problem.inputs["w_o"], strict=True):
        total += flint.arb_mat(n, head.shape[1], list(head.ravel())) * Exact.of(matrix).matrix()
    rows = total.tolist()
    for i in range(n):
        for o in range(width):
            output[i, o] = rows[i][o]
            if "b_o" in problem.inputs:
                output[i, o] = output[i, o] + flint.arb(float(problem.inputs["b_o"][o]))
    return output


def _split_all(balls: Any, shown: Array) -> Pair:
    """Hi and lo of every ball; where the float64 result is not finite, that value itself."""
    hi, lo = np.zeros(balls.shape), np.zeros(balls.shape)
    for place, ball in np.ndenumerate(balls):
        if np.isfinite(shown[place]):
            hi[place], lo[place] = split(ball)
        else:
            hi[place] = shown[place]
    return hi, lo
