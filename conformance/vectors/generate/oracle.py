"""The golden values, in ball arithmetic: projections and q k^T exactly, the softmax onward in balls."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np

from conformance.vectors.generate.ball_rounding import NeverDecidedError, UndecidedError, split
from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.float64_model import present as present_of
from conformance.vectors.generate.normal_form import Array, Problem

FIRST_BITS = 192
LAST_BITS = 12288

Pair = tuple[Array, Array]


def golden(
    problem: Problem,
    approximation: Approximation,
    wanted: Iterable[str],
    parted: Callable[[Any], tuple[float, float]] = split,
) -> tuple[dict[str, Pair], int]:
    """Hi and lo of every wanted output, and the precision in bits that decided them.

    `parted` makes hi and lo of a ball, or raises UndecidedError.

    Raises:
        NeverDecidedError: an output cannot be decided: its exact value lies where two numbers of a dtype meet.
    """
    return decide(lambda: _decided(problem, approximation, tuple(wanted), parted))


def decide(compute: Callable[[], dict[str, Pair]]) -> tuple[dict[str, Pair], int]:
    """The pairs at the first precision in bits that decides all of them, and that precision.

    Raises:
        NeverDecidedError: as golden does.
    """
    bits = FIRST_BITS
    while bits <= LAST_BITS:
        flint.ctx.prec = bits
        try:
            return compute(), bits
        except UndecidedError:
            bits *= 2
    raise NeverDecidedError(f"an output is not decided at {LAST_BITS} bits")


def _decided(
    problem: Problem,
    approximation: Approximation,
    wanted: tuple[str, ...],
    parted: Callable[[Any], tuple[float, float]],
) -> dict[str, Pair]:
    outputs = {
        "output": np.empty(approximation.output.shape, dtype=object),
        "weights": np.empty(approximation.weights.shape, dtype=object),
        "lse": np.empty(approximation.lse.shape, dtype=object),
    }
    present: dict[str, list[list[Array]]] = {"present_key": [], "present_value": []}
    for b in range(problem.size):
        keys = projections(problem, b, "key", "w_k", "b_k")
        values = projections(problem, b, "value", "w_v", "b_v")
        queries = projections(problem, b, "query", "w_q", "b_q")
        present["present_key"].append([key.balls() for key in keys])
        present["present_value"].append([value.balls() for value in values])
        heads = []
        for h in range(problem.num_heads):
            g = h // problem.group
            weights = softmax(problem, approximation, b, h, queries[h] @ keys[g].transposed())
            for place in np.ndindex(*problem.visible.shape[2:]):
                outputs["weights"][b, h, *place] = weights.weight(*place)
            outputs["lse"][b, h] = weights.lse
            heads.append(average(problem, b, h, weights, values[g]))
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
    copied = present_of(problem, approximation)
    result = {name: split_all(outputs[name], shown[name], parted) for name in shown if name in wanted}
    for name, per_batch in present.items():
        if name in wanted:
            balls = np.empty((problem.size, problem.num_kv_heads, *per_batch[0][0].shape), dtype=object)
            for b, per_head in enumerate(per_batch):
                for g, array in enumerate(per_head):
                    balls[b, g] = array
            result[name] = split_all(balls, copied[name], parted)
    return result


def projections(problem: Problem, b: int, name: str, weight: str, bias: str) -> list[Exact]:
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


@dataclass(frozen=True)
class Weights:
    """The softmax of one head in balls, unnormalised."""

    exponentials: list[list[Any]]  # [rows][kv_len], zero where masked
    sinks: list[Any]  # [rows], the exponential of the sink; zero without one
    totals: list[Any]  # [rows], the denominator; one for an empty row
    lse: Any  # [rows]

    def weight(self, i: int, j: int) -> Any:
        """One normalised weight."""
        return self.exponentials[i][j] / self.totals[i]


def softmax(problem: Problem, approximation: Approximation, b: int, h: int, raw: Exact) -> Weights:
    """The exponentials of one head and their sums; exact where logits tie. `raw` is q k^T, [rows, kv_len]."""
    n, m = problem.visible.shape[2:]
    factor = scale_of(problem)
    sinks = problem.inputs.get("sinks")
    exponentials = [[flint.arb(0)] * m for _ in range(n)]
    sunk, totals = [flint.arb(0)] * n, [flint.arb(1)] * n
    lse = np.full(n, flint.arb(0), dtype=object)
    for i in range(n):
        # a visible -inf logit weighs nothing; NaN and +inf are shown by the approximation alone
        seen = [j for j in range(m) if np.isfinite(approximation.logits[b, h, i, j])]
        if not np.isfinite(approximation.lse[b, h, i]):
            continue
        exponents: list[Any] = []
        top = flint.arb(0)
        if seen:
            exponents, top = _exponents(problem, raw, factor, b, h, i, seen, approximation)
        elif sinks is not None:  # MASK-16: the sink is all there is
            top = flint.arb(float(sinks[h]))
        total = flint.arb(0)
        for j, exponent in zip(seen, exponents, strict=True):
            exponentials[i][j] = exponent.exp()
            total += exponentials[i][j]
        if sinks is not None and np.isfinite(sinks[h]):
            sunk[i] = (flint.arb(float(sinks[h])) - top).exp()
            total += sunk[i]
        totals[i] = total
        lse[i] = top + total.log()
    return Weights(exponentials, sunk, totals, lse)


def average(problem: Problem, b: int, h: int, weights: Weights, value: Exact) -> Any:
    """The output of one head, [rows, d_v]; exactly a value where all that are seen are equal."""
    n, m = problem.visible.shape[2:]
    matrix = flint.arb_mat(n, m, [x for row in weights.exponentials for x in row])
    centred, first = value.centred() if "sinks" not in problem.inputs else (value, None)
    sums = (matrix * centred.matrix()).tolist() if n else []
    head = np.empty((n, problem.d_v), dtype=object)
    for i in range(n):
        empty = not problem.visible[b, h, i].any()
        for d in range(problem.d_v):
            mean = sums[i][d] / weights.totals[i]
            head[i, d] = mean if first is None or empty else mean + first[d]
    return head


def scale_of(problem: Problem) -> Any:
    """The scale as a ball; its radius is zero if it was given."""
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


def split_all(balls: Any, shown: Array, parted: Callable[[Any], tuple[float, float]] = split) -> Pair:
    """Hi and lo of every ball; where the float64 result is not finite, that value itself."""
    hi, lo = np.zeros(balls.shape), np.zeros(balls.shape)
    for place, ball in np.ndenumerate(balls):
        if np.isfinite(shown[place]):
            hi[place], lo[place] = parted(ball)
        else:
            hi[place] = shown[place]
    return hi, lo
