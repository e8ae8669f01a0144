"""The second tier: ball arithmetic on some elements of a result, and on what they depend on alone."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import flint
import numpy as np

from conformance.vectors.generate.approximate import approximate
from conformance.vectors.generate.balls import UndecidedError
from conformance.vectors.generate.gradients.oracle import golden_gradients
from conformance.vectors.generate.oracle import Pair, golden
from conformance.vectors.generate.problem import Problem, part

BITS = 110
"""Significant bits that are enough: hi and lo have 106."""
NOTHING = flint.arb((1, -1100))
"""A number below it counts as zero, which a ball around zero never shows to be: no dtype holds any."""
SMALL = flint.arb((1, -300))
"""The same of a gradient where its ball holds zero: there are many, and each takes more bits."""

Place = tuple[int, ...]


def closely(ball: Any, gradient: bool = False) -> tuple[float, float]:
    """Hi and lo of a ball that is narrow, wherever the borders of the dtypes lie."""
    if not ball.is_finite():
        raise UndecidedError
    if ball.rel_accuracy_bits() < BITS and not ball.is_exact():
        if bool(abs(ball) < NOTHING) or (gradient and bool(abs(ball) < SMALL) and ball.contains(0)):
            return 0.0, 0.0
        raise UndecidedError
    hi = float(ball.mid())
    return hi, float((ball - flint.arb(hi)).mid())


_of_gradient = partial(closely, gradient=True)


def elements(problem: Problem, name: str, places: Iterable[Place]) -> dict[Place, tuple[float, float]]:
    """Hi and lo of elements of an output. A place is an index in it, with its batch axes flattened."""
    found: dict[Place, tuple[float, float]] = {}
    columns: dict[Place, list[int]] = {}
    for place in places:
        whole = 3 if name == "lse" else len(place) - 1
        columns.setdefault(place[:whole], []).append(place[-1] if whole < len(place) else 0)
    for row, of_row in columns.items():
        hi, lo = _row(problem, name, row, of_row)
        for i, column in enumerate(of_row):
            found[row if name == "lse" else (*row, column)] = float(hi[i]), float(lo[i])
    return found


def _row(problem: Problem, name: str, row: Place, columns: list[int]) -> Pair:
    """Some elements of a row of an output."""
    entry = slice(row[0], row[0] + 1)
    if name.startswith("present"):
        found = _golden(part(problem, entry, slice(0, 0)), name)
        return tuple(x[0, row[1], row[2]][columns] for x in found)
    one = part(problem, entry, slice(row[-1], row[-1] + 1))
    if name == "output" and problem.layer:
        inputs = {**one.inputs, "w_o": one.inputs["w_o"][:, :, columns]}
        if "b_o" in inputs:
            inputs["b_o"] = inputs["b_o"][columns]
        found = _golden(replace(one, inputs=inputs), name)
        return tuple(x[0, 0] for x in found)
    one = of_head(one, row[1])
    if name == "output" and not problem.layer:
        one = _seen_alone(one, columns)
        columns = list(range(len(columns)))
    found = _golden(one, name)
    if name == "lse":
        return tuple(x[0, 0] for x in found)
    return tuple(x[0, 0, 0][columns] for x in found)


def of_head(problem: Problem, head: int) -> Problem:
    """One query head and the key head it reads."""
    g, inputs = head // problem.group, dict(problem.inputs)
    query, key = slice(head, head + 1), slice(g, g + 1)
    if problem.layer:
        for names, place in ((("w_q", "b_q", "w_o"), query), (("w_k", "w_v", "b_k", "b_v"), key)):
            inputs |= {name: inputs[name][place] for name in names if name in inputs}
    else:
        for name in ("query", "grad_output"):
            if name in inputs:
                inputs[name] = inputs[name][:, query]
        inputs |= {name: inputs[name][:, key] for name in ("key", "value")}
    for name in ("past_key", "past_value"):
        if name in inputs:
            inputs[name] = inputs[name][:, key]
    if "sinks" in inputs:
        inputs["sinks"] = inputs["sinks"][query]
    if "grad_lse" in inputs:
        inputs["grad_lse"] = inputs["grad_lse"][:, query]
    return replace(
        problem,
        inputs=inputs,
        num_heads=1,
        num_kv_heads=1,
        visible=problem.visible[:, query],
        bias=problem.bias[:, query],
    )


def _seen_alone(one: Problem, columns: list[int]) -> Problem:
    """One row of one head without the keys that it does not see, and with some columns of the values."""
    seen, inputs = one.visible[0, 0, 0], dict(one.inputs)
    for name in ("key", "value"):
        whole = inputs[name]
        if past := f"past_{name}" in inputs:
            whole = np.concatenate([inputs.pop(f"past_{name}"), whole], axis=-2)
        assert whole.shape[-2] == len(seen), past
        inputs[name] = whole[:, :, seen]
    inputs["value"] = inputs["value"][..., columns]
    return replace(
        one,
        inputs=inputs,
        kv_len=int(seen.sum()),
        visible=one.visible[..., seen],
        bias=one.bias[..., seen],
    )


def _golden(problem: Problem, name: str) -> Pair:
    return golden(problem, approximate(problem), (name,), closely)[0][name]


def gradient_row(problem: Problem, row: Place) -> Pair:
    """The gradient of the query of one row (entry, head, row) of the operation without projections."""
    one = of_head(part(problem, slice(row[0], row[0] + 1), slice(row[2], row[2] + 1)), row[1])
    hi, lo = golden_gradients(replace(one, batch=(1,)), approximate(one), (1, 1), ("query",), _of_gradient)[
        "query"
    ]
    return hi[0, 0, 0], lo[0, 0, 0]


def every_gradient(problem: Problem, bias_shape: tuple[int, ...], wanted: tuple[str, ...]) -> dict[str, Pair]:
    """Hi and lo of every gradient."""
    return golden_gradients(problem, approximate(problem), bias_shape, wanted, _of_gradient)
