"""s of every gradient: the RMS of what randomly drawn roundings do to it, combined for each policy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from conformance.vectors.generate.approximate import Approximation
from conformance.vectors.generate.gradients.noise import KINDS, STEP, Noise
from conformance.vectors.generate.gradients.simulate import simulate
from conformance.vectors.generate.policies import OPERAND_ROUNDOFF, Policy
from conformance.vectors.generate.problem import Array, Problem

DRAWS = 128
"""Of each kind of place, and for each of the two ways to form Delta."""
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
    """Simulates every kind of rounding on its own; the larger response of the two ways to form Delta."""
    rms: dict[tuple[str, int], dict[str, Array]] = {}
    for from_output in (False, True):
        run = partial(simulate, problem, a, bias_shape=bias_shape, from_output=from_output)
        exact = run(noise=Noise("none", 1, seed))
        for kind in KINDS:
            reduced = {bits for _, bits in OPERAND_ROUNDOFF.values()}
            for bits in sorted(reduced) if kind in ("operand", "drift") else (53,):
                found = _rms(run, exact, kind, bits, max(1, problem.visible.size), f"{seed}:{from_output}")
                before = rms.setdefault((kind, bits), found)
                rms[kind, bits] = {name: np.maximum(x, before[name]) for name, x in found.items()}
    return Responses(rms)


def _rms(
    run: Callable[..., dict[str, Array]],
    exact: dict[str, Array],
    kind: str,
    bits: int,
    size: int,
    seed: str,
) -> dict[str, Array]:
    draws = 1 if kind == "drift" else DRAWS
    once = max(1, min(draws, AT_ONCE // size))
    roots = {name: np.zeros(x.shape[1:]) for name, x in exact.items()}
    count = 0
    while count < draws:
        noise = Noise(kind, once, f"{seed}:{bits}:{count}", bits)
        for name, x in run(noise=noise).items():
            errors = np.broadcast_to(x - exact[name], (once, *x.shape[1:]))
            roots[name] = _root([roots[name], *errors])
        count += once
    return {name: x / np.sqrt(count) / STEP for name, x in roots.items()}


def _root(parts: list[Array]) -> Array:
    """Root of the sum of squares; gradients of 1e-200 have squares that vanish."""
    root: Array = np.hypot.reduce(np.stack(parts), axis=0)
    return root
