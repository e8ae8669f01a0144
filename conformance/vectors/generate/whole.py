"""Exact values and bounds of every output, found part by part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.vectors.case import Array
from conformance.vectors.generate.bounds import completed, partial_limits
from conformance.vectors.generate.float64_model import Approximation, approximate
from conformance.vectors.generate.gradients.oracle import golden_gradients
from conformance.vectors.generate.gradients.rms import DRAWS
from conformance.vectors.generate.normal_form import Limits, Problem, finite, parts
from conformance.vectors.generate.oracle import Pair, golden
from conformance.vectors.generate.overflow import overflow
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import FINEST


@dataclass(frozen=True)
class Values:
    """What finds the exact value of every output, or gradient, of a problem, as hi + lo, and its bounds."""

    outputs: Callable[[Problem, Approximation, tuple[str, ...], tuple[slice, slice]], dict[str, Pair]]
    gradients: Callable[[Problem, Approximation, tuple[int, ...], tuple[str, ...]], dict[str, Pair]]
    limits: Callable[[Problem, Approximation, Policy, tuple[str, ...]], dict[str, Limits]] = partial_limits
    draws: int = DRAWS  # of roundings, from which s of a gradient is found


BALLS = Values(lambda problem, a, wanted, _: golden(problem, a, wanted)[0], golden_gradients)
"""In ball arithmetic: what the vectors hold."""

AT_FIRST = 64
"""Keys that are looked at before all of them."""


@dataclass
class Found:
    """What the parts of a problem come to, whole."""

    exact: dict[str, Pair]
    shown: dict[str, Array]  # as float64 shows it: what is not finite, and where
    bounds: dict[tuple[Policy, tuple[str, ...]], dict[str, Limits]]
    overflows: dict[tuple[str, tuple[str, ...]], str]  # dtype and policies -> why there are no bounds
    rms_applies: bool

    def repeated(self, which: Array) -> "Found":
        """The same of a batch whose entries repeat these: entry -> which of them it is."""

        def every(pairs: Mapping[str, tuple[Array, ...]]) -> dict[str, Any]:
            return {name: tuple(array[which] for array in pair) for name, pair in pairs.items()}

        return replace(
            self,
            exact=every(self.exact),
            shown={name: array[which] for name, array in self.shown.items()},
            bounds={key: every(limits) for key, limits in self.bounds.items()},
        )

    @property
    def held(self) -> list[tuple[Policy, tuple[str, ...]]]:
        """The policies under which nothing overflows."""
        return [key for key in self.bounds if (key[0].dtype, key[1]) not in self.overflows]

    def limits(self, policy: Policy) -> dict[str, Limits]:
        """W and s of each output under a policy."""
        of_parts = next(limits for (key, _), limits in self.bounds.items() if key == policy)
        return {
            name: completed(name, policy, found, self.shown.get(name)) for name, found in of_parts.items()
        }


def place_of(problem: Problem, name: str, entries: slice, rows: slice) -> tuple[slice, ...]:
    """Where some entries and judged rows lie in an output whose batch axes are flattened."""
    if name.startswith("present"):
        return (entries,)
    return (entries, rows) if name == "output" and problem.layer else (entries, slice(None), rows)


def outputs_of(
    problem: Problem,
    todo: list[tuple[Policy, tuple[str, ...]]],
    wanted: tuple[str, ...],
    values: Values,
) -> Found:
    """Exact values and bounds of every wanted output, part by part."""
    whole = Found({}, {}, {key: {} for key in todo}, {}, False)

    def fill(target: dict[str, Any], name: str, pair: tuple[Array, ...], entries: slice, rows: slice) -> None:
        if part is problem:
            target[name] = pair
            return
        place = place_of(problem, name, entries, rows)
        if name not in target:
            shape = (problem.size, *pair[0].shape[1:])
            if len(place) > 1:
                shape = (*shape[: len(place) - 1], len(problem.rows), *shape[len(place) :])
            target[name] = tuple(np.zeros(shape) for _ in pair)
        for array, of_part in zip(target[name], pair, strict=True):
            array[place] = of_part

    shown: dict[str, Any] = {}
    for entries, rows, part in parts(problem):
        a = approximate(part)
        whole.rms_applies |= rms_applies(part, a)
        for name, pair in values.outputs(part, a, wanted, (entries, rows)).items():
            fill(whole.exact, name, pair, entries, rows)
        for name, array in (("output", a.output), ("weights", a.weights), ("lse", a.lse)):
            if name in wanted:
                fill(shown, name, (array,), entries, rows)
        for (policy, stands_for), bounds in whole.bounds.items():
            if reason := overflow(part, a, policy):
                whole.overflows.setdefault((policy.dtype, stands_for), reason)
            else:
                for name, pair in values.limits(part, a, policy, wanted).items():
                    fill(bounds, name, pair, entries, rows)
    whole.shown = {name: array for name, (array,) in shown.items()}
    return whole


def rms_applies(problem: Problem, a: Approximation) -> bool:
    """Rule 2 is not asked where no row sees two keys, or where all keys are equal: errors are then coherent.

    Projected keys that are equal may differ in a last bit of a matrix product.
    """
    several = bool((problem.visible.sum(axis=-1) > 1).any())
    key = finite(a.key[:, :: problem.group])
    least = FINEST * np.abs(key).max(initial=0.0)
    varied = any(  # the first few tell, as a rule
        bool((np.abs(part - key[..., :1, :]) > least).any()) for part in (key[..., :AT_FIRST, :], key)
    )
    return several and varied
