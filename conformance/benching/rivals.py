"""Targets made ready to be timed: loaded, given their own arrays once, and seen to agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.benching.problem import Problem
from conformance.benching.references import NO_ATTENTION, REFERENCES
from conformance.errors import UsageError
from conformance.running.invoke import call, swapped
from conformance.running.signature import ARRAYS, GRADIENT
from conformance.running.target import Target, adopt, load
from conformance.vectors.case import Array

AGREEMENT = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""How far outputs may be apart, of the largest element: who is right is for `run` to say."""


class OtherResultError(Exception):
    """A rival that computes something else; the text says how far off."""


@dataclass(frozen=True)
class Rival:
    """A target on operands of its own."""

    source: str
    target: Target
    run: Callable[[], Any]
    """One call, over when it returns."""


def target_of(source: str, operation: str, dtype: str) -> Target:
    """The target that a string names, references included.

    Raises:
        UsageError: it cannot be loaded, or claims neither the operation nor the dtype.
    """
    target = adopt(REFERENCES[source], source) if source in REFERENCES else load(source, operation)
    if operation not in target.calls:
        raise UsageError(f"{source} has no {operation}; it has {', '.join(target.calls)}")
    if dtype not in target.hello.dtypes:
        raise UsageError(f"{source} does not support {dtype}; it supports {', '.join(target.hello.dtypes)}")
    return target


def outputs_of(source: str, target: Target, problem: Problem) -> Mapping[str, Array]:
    """What a target answers, read in full.

    Raises:
        UsageError: it raises, cannot be read, or does not know an option.
    """
    answer = call(target, problem.operation, problem.inputs, problem.options, {})
    if answer.kind != "outputs":
        raise UsageError(f"{source} cannot be timed on this: {answer.message}")
    return answer.outputs


def check_agreement(source: str, got: Mapping[str, Array], wanted: Mapping[str, Array], dtype: str) -> None:
    """Refuses a rival that computes something else than the target.

    Raises:
        OtherResultError: a shared output is further off than rounding explains.
    """
    if source in NO_ATTENTION:
        return
    shared = sorted(got.keys() & wanted.keys())
    if not shared:
        raise OtherResultError(f"{source} answers with {', '.join(got)}, the target with {', '.join(wanted)}")
    for name in shared:
        x, y = got[name].astype(np.float64), wanted[name].astype(np.float64)
        if x.shape != y.shape:
            raise OtherResultError(f"{source}: its {name} has shape {x.shape}, the target's {y.shape}")
        off, largest = float(np.abs(x - y).max(initial=0.0)), float(np.abs(y).max(initial=0.0))
        if not off <= AGREEMENT[dtype] * largest:
            raise OtherResultError(
                f"{source} computes something else: its {name} is off by {off:.2g} where the target's largest "
                f"is {largest:.2g}; see `mha-conformance run {source}`"
            )


def rival(source: str, target: Target, problem: Problem) -> Rival:
    """A target with its arrays at hand, so that a run is the call alone."""
    how = target.calls[problem.operation]
    named = {
        name: target.give(np.ascontiguousarray(swapped(target, problem.operation, name, array)))
        for name, array in problem.inputs.items()
    } | problem.options
    places = () if how.by_keyword else (*ARRAYS, GRADIENT)
    positions = [named.pop(name) for name in places if name in named]

    def run() -> Any:
        return _finished(how.function(*positions, **named))

    return Rival(source, target, run)


def _finished(returned: Any) -> Any:
    """What was returned, once it is computed: some libraries only promise."""
    parts = returned.values() if isinstance(returned, Mapping) else returned
    for part in parts if isinstance(returned, tuple | Mapping) else (returned,):
        wait = getattr(part, "block_until_ready", None)
        if wait is not None:
            wait()
    return returned
