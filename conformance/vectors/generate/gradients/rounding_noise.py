"""Roundings drawn at random: each kind of rounding site, of relative size one, scaled down until errors are linear."""

import math
import random
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from conformance.vectors.generate.normal_form import Array
from conformance.vectors.generate.random_inputs import round_to_bits
from conformance.vectors.generate.summation_error import Alike, partial_sums, sum_variance

STEP = 2.0**-14
"""Small enough for errors to be linear in it, large enough for the float64 of any machine to agree on them."""

Kind = Literal["none", "storage", "eager", "heads", "accumulation", "operand", "drift"]
"""Sites that are rounded to the dtype always, where eager, or for each head of a group; float32 arithmetic; matmul
operands, and their drift."""


@dataclass
class Noise:
    """One kind of rounding at work; the methods are the sites. Arrays have the draws as their first axis."""

    kind: Kind
    draws: int
    seed: str
    bits: int = 53  # significant bits of what is rounded; some operands are exact in them
    _words: np.random.MT19937 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # the words of Python's generator, which a string seeds on every machine alike; NumPy's is four times as fast
        *key, place = random.Random(f"{self.seed}:{self.kind}").getstate()[1]
        self._words = np.random.MT19937()
        self._words.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": place}}

    def _uniform(self, shape: tuple[int, ...]) -> Array:
        """Between -STEP and STEP."""
        words: Array = self._words.random_raw(math.prod(shape)).astype(np.float64).reshape(shape)
        words += 0.5
        words *= 2.0**-31
        words -= 1.0
        words *= STEP
        return words

    def _shape(self, x: Array) -> tuple[int, ...]:
        return (self.draws, *x.shape[1:])

    def _relative(self, x: Array, times: float, alike: Alike | None = None) -> Array:
        return x + x * (times * self._shared(x, alike))

    def store(self, x: Array, alike: Alike | None = None) -> Array:
        """A tensor that is stored in the dtype."""
        return self._relative(x, 1.0, alike) if self.kind == "storage" else x

    def eager(self, x: Array, alike: Alike | None = None) -> Array:
        """A tensor that only an eager implementation stores in the dtype."""
        return self._relative(x, 1.0, alike) if self.kind == "eager" else x

    def of_heads(self, x: Array) -> Array:
        """The gradients of the heads of a group, which a fused implementation may store before it adds them up."""
        return self._relative(x, 1.0) if self.kind in ("eager", "heads") else x

    def compute(self, x: Array, times: float = 1.0) -> Array:
        """A float32 operation or function, so many roundings large."""
        return self._relative(x, times) if self.kind == "accumulation" else x

    def shift(self, x: Array, by: Array) -> Array:
        """An absolute error of float32 arithmetic; `by` may be one for a whole row."""
        return x + by * self._uniform(self._shape(by)) if self.kind == "accumulation" else x

    def total(self, x: Array, axes: tuple[int, ...], coherence: Array | float = 1.0) -> Array:
        """A sum over axes, which are counted without the draws; coherence has the shape of the sum."""
        places = tuple(axis + 1 for axis in axes)
        result: Array = x.sum(axis=places)
        if self.kind != "accumulation":
            return result
        count = math.prod(x.shape[axis] for axis in places)
        squares = (x[0] ** 2).sum(axis=axes)[None]
        terms = np.moveaxis(x[0], axes, range(-len(axes), 0)).reshape(*squares.shape[1:], 1, count)
        partial = partial_sums(terms, np.ones((count, 1)))[None, ..., 0, 0]
        size = self._of_sum(count * coherence, squares, result, partial)
        return result + size * self._uniform(self._shape(result))

    def product(
        self,
        x: Array,
        y: Array,
        exact: tuple[bool, bool] = (False, False),
        alike: tuple[Alike | None, Alike | None] = (None, None),
        coherence: Array | float = 1.0,
    ) -> Array:
        """A matrix product; `exact` says which operands any format holds, `alike` which numbers of them round alike.

        coherence has the shape of the product, but for its last axis.
        """
        if self.kind == "operand":
            x, y = (
                z if fixed else z * (1.0 + self._shared(z, same))
                for z, fixed, same in zip((x, y), exact, alike, strict=True)
            )
        if self.kind == "drift":
            x, y = (z if fixed else z * (1.0 + STEP) for z, fixed in zip((x, y), exact, strict=True))
        result = x @ y
        if self.kind != "accumulation":
            return result
        squares = (x[0] ** 2 @ y[0] ** 2)[None]
        size = self._of_sum(x.shape[-1] * coherence, squares, result, partial_sums(x[0], y[0])[None])
        return result + size * self._uniform(self._shape(result))

    def _shared(self, x: Array, alike: Alike | None) -> Array:
        """One number for each element, or for each group."""
        own = self._uniform(self._shape(x))
        return own if alike is None else alike.largest * own.reshape(self.draws, -1)[:, alike.group]

    @staticmethod
    def _of_sum(count: Array | float, squares: Array, total: Array, partial: Array) -> Array:
        """The largest error of a uniform one with the RMS of an n-term sum (spec/bounds.md)."""
        return np.sqrt(3.0 * sum_variance(1.0, count, squares, total, partial))

    def holds(self, x: npt.NDArray[np.float64]) -> bool:
        """Whether a matmul operand under the policy holds every number of an array."""
        return bool(np.array_equal(round_to_bits(x, self.bits), x))
