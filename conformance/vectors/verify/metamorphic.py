"""Relations that exact results obey: calls that mean the same as a case have its golden values, bit for bit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.names import SERVING
from conformance.vectors.case import Array, Case
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import Problem, pose
from conformance.vectors.generate.oracle import golden

STATISTICS = ("output", "weights", "lse")


@dataclass(frozen=True)
class Relation:
    """Another call, and what its results have to be."""

    name: str
    applies: Callable[[Case], bool]
    other: Callable[[Case, Problem], Problem]
    expected: Callable[[str, Array, Problem], Array]  # result name, hi or lo in the form of a Problem


def related(case: Case) -> tuple[int, list[str]]:
    """How many elements of a forward call were compared with those of calls that mean the same, and what differs."""
    if "output" not in case.expected or case.operation in SERVING:
        return 0, []
    names = [name for name in STATISTICS if name in case.expected]
    rows = case.expected["output"].rows
    problem = pose(case.operation, _wide(case.inputs), case.options, rows)
    compared, wrong = 0, []
    for relation in RELATIONS:
        if not relation.applies(case):
            continue
        other = relation.other(case, problem)
        found, _ = golden(other, approximate(other), names)
        for name in names:
            for part, got in zip(("hi", "lo"), found[name], strict=True):
                held = getattr(case.expected[name], part)
                flat = held.reshape(problem.size, *held.shape[len(problem.batch) :])
                wanted = relation.expected(name, flat, problem)
                if not np.array_equal(got, wanted, equal_nan=True):
                    wrong.append(f"{case.id}: {part} of {name} is not that of {relation.name}")
            compared += found[name][0].size
    return compared, wrong


def _wide(inputs: Mapping[str, Array]) -> dict[str, Any]:
    return {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in inputs.items()}


def _reversed(case: Case, problem: Problem) -> Problem:
    """The keys from the last to the first, all that hides them as one mask."""
    inputs = dict(problem.inputs)
    for name in ("key", "value"):
        if f"past_{name}" in inputs:  # plain attention: the past is keys in front
            inputs[name] = np.concatenate([inputs.pop(f"past_{name}"), inputs[name]], axis=-2)
        inputs[name] = inputs[name][..., ::-1, :]
    visible, bias = problem.visible[..., ::-1], problem.bias[..., ::-1]
    return replace(problem, inputs=inputs, visible=visible, bias=bias)


def _as_reversed(name: str, held: Array, problem: Problem) -> Array:
    return held[..., ::-1] if name == "weights" else held


def _last(case: Case, problem: Problem) -> Problem:
    """The last batch entry alone, its options read from the call itself and not from the problem."""
    axes = len(problem.batch)
    shared = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "sinks")
    entry = {}
    for name, x in _wide(case.inputs).items():
        whole = name in shared or (name in ("mask", "attn_bias") and x.ndim == 2)
        whole |= name.endswith("_segments") and x.ndim == 1
        entry[name] = x if whole else x[tuple(slice(-1, None) for _ in range(axes))].reshape(x.shape[axes:])
    return pose(case.operation, entry, case.options, case.expected["output"].rows)


RELATIONS = (
    Relation(
        "the same call with its keys in reverse order and one mask",
        lambda case: (
            case.inputs["key"].shape[-2] > 1 and not ("w_k" in case.inputs and "past_key" in case.inputs)
        ),
        _reversed,
        _as_reversed,
    ),
    Relation(
        "the last batch entry alone",
        lambda case: case.expected["output"].hi.ndim > 2 and _size(case) > 1,
        _last,
        lambda name, held, problem: held[-1:],
    ),
)
"""Each applies to most cases."""


def _size(case: Case) -> int:
    shape = case.inputs["query"].shape
    return int(np.prod(shape[: -2 if "w_q" in case.inputs else -3]))
