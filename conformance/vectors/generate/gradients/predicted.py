"""s of every gradient: the RMS of what randomly drawn roundings do to it, combined for each policy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.names import DTYPES
from conformance.vectors.generate.approximate import Approximation
from conformance.vectors.generate.gradients.noise import STEP, Kind, Noise
from conformance.vectors.generate.gradients.simulate import alike_weights, coherence_of, simulate
from conformance.vectors.generate.policies import OPERAND_ROUNDOFF, Policy
from conformance.vectors.generate.problem import Array, Problem
from conformance.vectors.generate.sums import Alike

DRAWS = 128
"""Of each kind of place, and for each of the two ways to form Delta."""
AT_ONCE = 1 << 19
"""Elements of the logits, over all draws, that are simulated at once."""
Site = tuple[Kind, int]
"""A kind of site, and the bits of what is rounded there: some operands are exact in them, some weights round alike."""
STORED_BITS = {dtype: round(-math.log2(unit)) for dtype, unit in UNIT_ROUNDOFF.items() if dtype in DTYPES}
"""Significant bits of what is stored: numbers that are closer round alike."""


@dataclass(frozen=True)
class Responses:
    """What roundings of relative size one do to each gradient, by kind and by the bits of what is rounded."""

    rms: dict[Site, dict[str, Array]]

    def predicted(self, policy: Policy) -> dict[str, Array]:
        """The s of each gradient by argument name, without what underflow may cost."""
        stored = STORED_BITS[policy.dtype]
        sizes: dict[Site, float] = {
            ("storage", stored): policy.storage,
            ("eager", stored): policy.stored_logits,
            ("accumulation", 53): policy.accumulation,
            ("operand", policy.operand_bits): policy.operand,
            ("drift", policy.operand_bits): policy.drift,
        }
        names = self.rms["accumulation", 53]
        return {
            name: _root([size * self.rms[site][name] for site, size in sizes.items() if size])
            for name in names
        }


def responses(problem: Problem, a: Approximation, bias_shape: tuple[int, ...], seed: str) -> Responses:
    """Simulates every kind of rounding on its own; the larger response of the two ways to form Delta."""
    coherence = coherence_of(problem, a)
    alike = {bits: alike_weights(problem, a, bits) for bits in STORED_BITS.values()}
    rms: dict[Site, dict[str, Array]] = {}
    for from_output in (False, True):
        run = partial(
            simulate, problem, a, bias_shape=bias_shape, from_output=from_output, coherence=coherence
        )
        found = _responses(run, alike, max(1, problem.visible.size), f"{seed}:{from_output}")
        rms = found if not rms else {site: _larger(rms[site], found[site]) for site in found}
    return Responses(rms)


def _responses(
    run: Callable[..., dict[str, Array]], alike: dict[int, Alike | None], size: int, seed: str
) -> dict[Site, dict[str, Array]]:
    exact = run(noise=Noise("none", 1, seed))
    find = partial(_rms, run, exact, size, seed)

    def with_alike(alone: dict[str, Array], kind: Kind, bits: int) -> dict[str, Array]:
        """The larger of two readings: every error on its own, or one for the weights that round alike."""
        return alone if alike[bits] is None else _larger(alone, find(kind, bits, alike[bits]))

    found: dict[Site, dict[str, Array]] = {("accumulation", 53): find("accumulation", 53)}
    for bits in {bits for _, bits in OPERAND_ROUNDOFF.values()}:
        found["drift", bits] = find("drift", bits)
        found["operand", bits] = with_alike(find("operand", bits), "operand", bits)
    stored: tuple[Kind, Kind] = ("storage", "eager")
    for kind in stored:
        alone = find(kind, 53)
        found |= {(kind, bits): with_alike(alone, kind, bits) for bits in alike}
    return found


def _larger(one: dict[str, Array], other: dict[str, Array]) -> dict[str, Array]:
    return {name: np.maximum(x, other[name]) for name, x in one.items()}


def _rms(
    run: Callable[..., dict[str, Array]],
    exact: dict[str, Array],
    size: int,
    seed: str,
    kind: Kind,
    bits: int,
    alike: Alike | None = None,
) -> dict[str, Array]:
    draws = 1 if kind == "drift" else DRAWS
    once = max(1, min(draws, AT_ONCE // size))
    roots = {name: np.zeros(x.shape[1:]) for name, x in exact.items()}
    count = 0
    while count < draws:
        noise = Noise(kind, once, f"{seed}:{bits}:{count}", bits)
        for name, x in run(noise=noise, alike=alike).items():
            errors = np.broadcast_to(x - exact[name], (once, *x.shape[1:]))
            roots[name] = _root([roots[name], *errors])
        count += once
    return {name: x / np.sqrt(count) / STEP for name, x in roots.items()}


def _root(parts: list[Array]) -> Array:
    """Root of the sum of squares; gradients of 1e-200 have squares that vanish."""
    root: Array = np.hypot.reduce(np.stack(parts), axis=0)
    return root
