"""The second tier of long calls without projections: balls for one query row of one head at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flint
import numpy as np

from conformance.oracle.dotted import dotted
from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.float64_model import Approximation, approximate
from conformance.vectors.generate.gradients.oracle import of_logits, slope_of
from conformance.vectors.generate.normal_form import Array, Problem, part
from conformance.vectors.generate.oracle import Weights, average, decide, scale_of, softmax, split_all

Pair = tuple[Array, Array]
Parted = Callable[[Any], tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One query row of one head as a problem of its own, of the keys that it sees alone."""

    problem: Problem
    approximation: Approximation
    raw: Exact  # [1, keys]
    slots: Any  # [keys], which those are

    @classmethod
    def of(cls, problem: Problem, entry: int, head: int, row: int) -> "Row":
        """From a whole problem; the places are those among what is judged."""
        one = of_head(part(problem, slice(entry, entry + 1), slice(row, row + 1)), head)
        slots = np.flatnonzero(one.visible[0, 0, 0])
        one = seen_alone(replace(one, batch=(1,)), slots)
        raw = dotted(one.inputs["query"][0, 0, 0], one.inputs["key"][0, 0])
        return cls(one, approximate(one), raw, slots)

    @property
    def weights(self) -> Weights:
        """At the precision that is set."""
        return softmax(self.problem, self.approximation, 0, 0, self.raw)

    def scores(self, weights: Weights) -> tuple[Any, Any]:
        """Gradients of the products of query and keys, [keys], and of the sink (GRAD-3 and GRAD-7)."""
        inputs = self.problem.inputs
        products = dotted(inputs["grad_output"][0, 0, 0], inputs["value"][0, 0])
        of_lse = inputs["grad_lse"][0, 0] if "grad_lse" in inputs else None
        logits, sink = of_logits(self.problem, weights, products, of_lse)
        slope = slope_of(self.problem, self.raw)
        return (logits if slope is None else logits * slope)[0] * scale_of(self.problem), sink


def output_row(
    problem: Problem, name: str, place: tuple[int, int, int], columns: Sequence[int], parted: Parted
) -> Pair:
    """Some elements of a row of the output or the weights, or its lse, which has one."""
    row = Row.of(problem, *place)
    one, a = row.problem, row.approximation
    if name == "output":
        one = replace(one, inputs={**one.inputs, "value": one.inputs["value"][..., list(columns)]})
    value = Exact.of(one.inputs["value"][0, 0] if name == "output" else np.zeros((len(row.slots), 0)))
    where = {int(slot): n for n, slot in enumerate(row.slots)}
    shown = {
        "output": a.output[0, 0, 0, list(columns)] if name == "output" else np.zeros(0),
        "weights": np.zeros(len(columns)),
        "lse": a.lse[0, 0, :1],
    }[name]

    def compute() -> dict[str, Pair]:
        weights = row.weights
        if name == "output":
            balls: Any = average(one, 0, 0, weights, value)[0]
        elif name == "lse":
            balls = weights.lse
        else:
            balls = _array(weights.weight(0, where[c]) if c in where else flint.arb(0) for c in columns)
        return {name: split_all(balls, shown, parted)}

    return decide(compute)[0][name]


def gradient_row(
    problem: Problem, place: tuple[int, int, int], columns: Sequence[int], parted: Parted
) -> Pair:
    """Some elements of the gradient of one query."""
    row = Row.of(problem, *place)
    flat = row.problem.softcap is None and not {"sinks", "grad_lse"} & set(row.problem.inputs)
    keys = Exact.of(row.problem.inputs["key"][0, 0][:, list(columns)])
    keys = keys.centred()[0] if flat else keys  # the gradients of the logits add up to zero

    def compute() -> dict[str, Pair]:
        scores, _ = row.scores(row.weights)
        sums = flint.arb_mat(1, len(scores), list(scores)) * keys.matrix()
        return {"": split_all(_array(sums.entries()), np.zeros(len(columns)), parted)}

    return decide(compute)[0][""]


def gradient_of_key(
    problem: Problem, name: str, place: tuple[int, int, int], columns: Sequence[int], parted: Parted
) -> Pair:
    """Some elements of the gradient of one key or value, which sums over every query that sees it.

    `place` is its entry, key head, and place among all keys, the past in front.
    """
    entry, of, slot = place
    seen = [
        (head, row)
        for head in range(of * problem.group, (of + 1) * problem.group)
        for row in np.flatnonzero(problem.visible[entry, head, :, slot]).tolist()
    ]

    def compute() -> dict[str, Pair]:
        total = np.full(len(columns), flint.arb(0), dtype=object)
        for head, row in seen:
            one = Row.of(problem, entry, head, row)
            weights, at = one.weights, int(np.searchsorted(one.slots, slot))
            if name == "value":
                share, other = weights.weight(0, at), one.problem.inputs["grad_output"]
            else:
                share, other = one.scores(weights)[0][at], one.problem.inputs["query"]
            total = total + _array(share * flint.arb(float(x)) for x in other[0, 0, 0][list(columns)])
        return {"": split_all(total, np.zeros(len(columns)), parted)}

    return decide(compute)[0][""]


def _array(balls: Iterable[Any]) -> Any:
    """An object array of one axis."""
    found = list(balls)
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array


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


def seen_alone(one: Problem, slots: Any) -> Problem:
    """One row of one head of the keys that it sees, the past among them."""
    inputs = dict(one.inputs)
    for name in ("key", "value"):
        whole = inputs[name]
        if f"past_{name}" in inputs:
            whole = np.concatenate([inputs.pop(f"past_{name}"), whole], axis=-2)
        assert whole.shape[-2] == one.kv_len
        inputs[name] = whole if len(slots) == one.kv_len else whole[:, :, slots]
    return replace(
        one,
        inputs=inputs,
        kv_len=len(slots),
        visible=one.visible[..., slots],
        bias=one.bias[..., slots],
    )
