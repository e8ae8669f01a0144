"""s of every gradient: the RMS of what randomly drawn roundings do to it, combined for each policy."""

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.names import DTYPES
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.rounding_noise import STEP, Kind, Noise
from conformance.vectors.generate.gradients.simulate import alike_weights, coherence_of, simulate
from conformance.vectors.generate.normal_form import Array, Problem
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import Alike

DRAWS = 128
"""Of each kind of place, and for each of the two ways to form Delta."""
FEWEST = 16
"""Of a problem so large that so many draws would take minutes."""
PAIRS = 1 << 22
"""Pairs of a query and a key, over all draws, from which on there are fewer of them; no stored case has so many."""
AT_ONCE = 1 << 19
"""Elements of the logits, over all draws, that are simulated at once."""
MORE_AT_ONCE = 1 << 21
"""The same of a problem with fewer draws."""
Site = tuple[Kind, int]
"""A kind of site, and the bits of what is rounded there: some operands are exact in them, some weights round alike."""
STORED_BITS = {dtype: round(-math.log2(unit)) for dtype, unit in UNIT_ROUNDOFF.items() if dtype in DTYPES}
"""Significant bits of what is stored: numbers that are closer round alike."""


class Responses:
    """What roundings of relative size one do to each gradient, by kind and by the bits of what is rounded.

    Each kind is simulated on its own, where a policy asks for it first; of the two ways to form Delta the larger
    response counts.
    """

    def __init__(
        self,
        problem: Problem,
        a: Approximation,
        bias_shape: tuple[int, ...],
        seed: str,
        of_query: bool = False,
        draws: int = DRAWS,
    ) -> None:
        self._size, self._seed, self._draws = max(1, problem.visible.size), seed, draws
        self._grouped = problem.group > 1
        coherence = coherence_of(problem, a)
        self._alike = cache(lambda bits: alike_weights(problem, a, bits))
        self._ways = {
            from_output: partial(
                simulate,
                problem,
                a,
                bias_shape=bias_shape,
                from_output=from_output,
                coherence=coherence,
                of_query=of_query,
            )
            for from_output in (False, True)
        }
        self._exact = cache(lambda way: self._ways[way](noise=Noise("none", 1, f"{seed}:{way}")))
        self._found: dict[Site, dict[str, Array]] = {}

    def predicted(self, policy: Policy) -> dict[str, Array]:
        """The s of each gradient by argument name, without what underflow may cost."""
        stored = STORED_BITS[policy.dtype]
        sizes: dict[Site, float] = {
            ("storage", stored): policy.storage,
            ("eager", stored): policy.stored_logits,
            ("heads", stored): policy.storage - policy.stored_logits if self._grouped else 0.0,
            ("accumulation", 53): policy.accumulation,
            ("operand", policy.operand_bits): policy.operand,
            ("drift", policy.operand_bits): policy.drift,
        }
        rms = {site: self._of(site) for site, size in sizes.items() if size}
        return {
            name: _root([sizes[site] * of_site[name] for site, of_site in rms.items()])
            for name in rms["accumulation", 53]
        }

    def _of(self, site: Site) -> dict[str, Array]:
        if site not in self._found:
            self._found[site] = _larger(*(self._of_way(way, *site) for way in self._ways))
        return self._found[site]

    def _of_way(self, way: bool, kind: Kind, bits: int) -> dict[str, Array]:
        """The larger of two readings: every error on its own, or one for the weights that round alike."""
        find = partial(
            _rms, self._ways[way], self._exact(way), self._size, self._draws, f"{self._seed}:{way}", kind
        )
        if kind in ("heads", "accumulation", "drift"):
            return find(bits)
        alike = self._alike(bits)
        alone = find(bits if kind == "operand" else 53)
        return alone if alike is None else _larger(alone, find(bits, alike))


def _larger(one: dict[str, Array], other: dict[str, Array]) -> dict[str, Array]:
    return {name: np.maximum(x, other[name]) for name, x in one.items()}


def _rms(
    run: Callable[..., dict[str, Array]],
    exact: dict[str, Array],
    size: int,
    most: int,
    seed: str,
    kind: Kind,
    bits: int,
    alike: Alike | None = None,
) -> dict[str, Array]:
    draws = 1 if kind == "drift" else max(FEWEST, min(most, PAIRS // size))
    once = max(1, min(draws, (AT_ONCE if draws == DRAWS else MORE_AT_ONCE) // size))
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
