"""The second tier: ball arithmetic on some elements of a result, and on what they depend on alone."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import flint

from conformance.oracle.byrow import gradient_of_key, gradient_row, of_head, output_row
from conformance.vectors.generate.ball_rounding import UndecidedError
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.gradients.oracle import golden_gradients
from conformance.vectors.generate.normal_form import Problem, part
from conformance.vectors.generate.oracle import Pair, golden

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
    if not problem.layer:
        return output_row(problem, name, (row[0], row[1], row[2]), columns, closely)
    one = part(problem, entry, slice(row[-1], row[-1] + 1))
    if name == "output":
        inputs = {**one.inputs, "w_o": one.inputs["w_o"][:, :, columns]}
        if "b_o" in inputs:
            inputs["b_o"] = inputs["b_o"][columns]
        found = _golden(replace(one, inputs=inputs), name)
        return tuple(x[0, 0] for x in found)
    found = _golden(of_head(one, row[1]), name)
    if name == "lse":
        return tuple(x[0, 0] for x in found)
    return tuple(x[0, 0, 0][columns] for x in found)


def _golden(problem: Problem, name: str) -> Pair:
    return golden(problem, approximate(problem), (name,), closely)[0][name]


def gradient_elements(
    problem: Problem, name: str, places: Iterable[Place]
) -> dict[Place, tuple[float, float]]:
    """Hi and lo of elements of the gradient of query, key or value of a call without projections."""
    found: dict[Place, tuple[float, float]] = {}
    columns: dict[Place, list[int]] = {}
    for place in places:
        columns.setdefault(place[:-1], []).append(place[-1])
    past = problem.kv_len - problem.inputs["key"].shape[-2]
    for (entry, head, row), of_row in columns.items():
        if name == "query":
            hi, lo = gradient_row(problem, (entry, head, row), of_row, _of_gradient)
        else:
            hi, lo = gradient_of_key(problem, name, (entry, head, past + row), of_row, _of_gradient)
        for i, column in enumerate(of_row):
            found[entry, head, row, column] = float(hi[i]), float(lo[i])
    return found


def every_gradient(problem: Problem, bias_shape: tuple[int, ...], wanted: tuple[str, ...]) -> dict[str, Pair]:
    """Hi and lo of every gradient."""
    return golden_gradients(problem, approximate(problem), bias_shape, wanted, _of_gradient)
