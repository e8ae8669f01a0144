"""s of every gradient: the RMS of what randomly drawn roundings do to it, combined for each policy."""

from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.approximate import Approximation
from conformance.vectors.generate.gradients.noise import KINDS, STEP, Noise
from conformance.vectors.generate.gradients.simulate import simulate
from conformance.vectors.generate.policies import OPERAND_ROUNDOFF, Policy
from conformance.vectors.generate.problem import Array, Problem

DRAWS = 256
AT_ONCE = 1 << 19
"""Elements of the logits, over all draws, that are simulated at once."""


@dataclass(frozen=True)
class Responses:
    """What roundings of relative size one do to each gradient, by kind (and by the bits of operands)."""

    rms: dict[tuple[str, int], dict[str, Array]]

    def predicted(self, policy: Policy) -> dict[str, Array]:
        """The s of each gradient by argument name, without what underflow may cost."""
        sizes = {
            ("storage", 53): policy.storage,
            ("eager", 53): policy.stored_logits,
            ("accumulation", 53): policy.accumulation,
            ("operand", policy.operand_bits): policy.operand,
            ("drift", policy.operand_bits): policy.drift,
        }
        names = self.rms["storage", 53]
        return {
            name: _root([size * self.rms[kind][name] for kind, size in sizes.items() if size])
            for name in names
        }


def responses(problem: Problem, a: Approximation, bias_shape: tuple[int, ...], seed: str) -> Responses:
    """Simulates every kind of rounding on its own."""
    exact = simulate(problem, a, Noise("none", 1, seed), bias_shape)
    rms = {}
    for kind in KINDS:
        reduced = {bits for _, bits in OPERAND_ROUNDOFF.values()}
        for bits in sorted(reduced) if kind in ("operand", "drift") else (53,):
            rms[kind, bits] = _rms(problem, a, bias_shape, kind, bits, exact, seed)
    return Responses(rms)


def _rms(
    problem: Problem,
    a: Approximation,
    bias_shape: tuple[int, ...],
    kind: str,
    bits: int,
    exact: dict[str, Array],
    seed: str,
) -> dict[str, Array]:
    draws = 1 if kind == "drift" else DRAWS
    once = max(1, min(draws, AT_ONCE // max(1, problem.visible.size)))
    roots = {name: np.zeros(x.shape[1:]) for name, x in exact.items()}
    count = 0
    while count < draws:
        noise = Noise(kind, once, f"{seed}:{bits}:{count}", bits)
        for name, x in simulate(problem, a, noise, bias_shape).items():
            errors = np.broadcast_to(x - exact[name], (once, *x.shape[1:]))
            roots[name] = _root([roots[name], *errors])
        count += once
    return {name: x / np.sqrt(count) / STEP for name, x in roots.items()}


def _root(parts: list[Array]) -> Array:
    """Root of the sum of squares; gradients of 1e-200 have squares that vanish."""
    root: Array = np.hypot.reduce(np.stack(parts), axis=0)
    return root
