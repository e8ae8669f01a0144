"""Inputs that are exact in every dtype, from a generator whose stream never changes.

Eight significant bits and magnitudes of at least 2^-14 (or zero) are exact in float64, float32, float16 and
bfloat16 alike, so that one golden value serves all four.
"""

import math
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EXACT_BITS = 8
SMALLEST = 2.0**-14
FILLED_FROM = 6
"""How many leading bits `filled` leaves as they are."""


class Draws:
    """A stream of arrays, fixed by its name."""

    def __init__(self, name: str) -> None:
        self._random = random.Random(name)

    def gauss(self, *shape: int, sigma: float = 1.0, bits: int = EXACT_BITS) -> Array:
        """About normal: the sum of twelve uniform 16-bit numbers, rounded to so many significant bits."""
        count = math.prod(shape)
        words = np.frombuffer(self._random.randbytes(24 * count), dtype="<u2").reshape(count, 12)
        sums = words.astype(np.int64).sum(axis=1) - 6 * 65535
        extra = 0 if bits <= EXACT_BITS else self.integers(count, low=-(2**14), high=2**14) * 2.0**-16
        return round_to_bits((sums + extra) / 65536.0 * sigma, bits).reshape(shape)

    def integers(self, *shape: int, low: int, high: int) -> Array:
        """Uniform integers from low to high inclusive."""
        count = math.prod(shape)
        words = np.frombuffer(self._random.randbytes(8 * count), dtype="<u8")
        return (low + (words % np.uint64(high - low + 1)).astype(np.int64)).astype(np.float64).reshape(shape)

    def mask(self, *shape: int, share: float = 0.6) -> npt.NDArray[np.bool_]:
        """True with the given probability."""
        return self.integers(*shape, low=0, high=999) < 1000 * share

    def filled(self, array: Array, bits: int) -> Array:
        """About the same numbers, with so many significant bits of which the last one is set; none of them is zero."""
        mantissa, exponent = np.frexp(np.where(array == 0, 0.375, array))
        kept = np.floor(np.abs(mantissa) * 2**FILLED_FROM) * 2.0 ** (bits - FILLED_FROM)
        rest = self.integers(*array.shape, low=0, high=2 ** (bits - FILLED_FROM - 1) - 1) * 2 + 1
        return np.ldexp(np.sign(mantissa) * (kept + rest), exponent - bits)

    def permutation(self, count: int) -> list[int]:
        """The numbers below count in some order."""
        order = list(range(count))
        for i in range(count - 1, 0, -1):
            j = self._random.getrandbits(32) % (i + 1)
            order[i], order[j] = order[j], order[i]
        return order


def round_to_bits(values: Array, bits: int = EXACT_BITS) -> Array:
    """To so many significant bits; what would be smaller than 2^-14 becomes zero."""
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)
    return np.where(np.abs(rounded) < SMALLEST, 0.0, rounded)


def exact(values: Sequence[object] | Array | float) -> Array:
    """The values as float64, after a check that eight bits hold each of them.

    Raises:
        ValueError: one of them needs more.
    """
    array = np.asarray(values, dtype=np.float64)
    finite = array[np.isfinite(array)]
    if not np.array_equal(round_to_bits(finite), finite):
        raise ValueError("a value is not exact in eight significant bits")
    return array
