"""Numbers of two float64 each, with a proven bound on their own error: about 70 bits where float64 has 53.

Sums and products are those of Joldes, Muller and Popescu (2017), whose bounds are 3, 5 and 15 U^2; more is charged.
Matrix products are formed of slices of so few bits that each product of two slices is exact in whatever order it is
summed up (Ozaki and others, 2012).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import numpy as np

from conformance.oracle.near import DEEPEST, SLACK, TINY, VANISHED, U, far, lost, raised
from conformance.vectors.generate.normal_form import Array, Bools

UU = 8 * U**2
HALVINGS = 7
EXP_ERROR = 2.0**-66
"""r^3 and more in float64, with |r| < 2^-8.5: 2^-81 of 1, doubled 7 times; the squarings 2^-96."""
SLICES = 5
_LN2 = tuple(map(float.fromhex, ("0x1.62e42fefa2000p-1", "0x1.9ef35793c6000p-41", "0x1.673007e5ed5e8p-81")))


@dataclass(frozen=True)
class Twofold:
    """Sums high + low and how far each may be from the exact number."""

    high: Array
    low: Array
    error: Array

    @classmethod
    def of(cls, exact: Array) -> "Twofold":
        """Numbers that are exact."""
        return cls(exact, np.zeros_like(exact), np.zeros_like(exact))

    @classmethod
    def root(cls, number: int) -> "Twofold":
        """1 / sqrt(number)."""
        bits = 200
        root = isqrt((1 << 2 * bits) // number)
        high = root / (1 << bits)
        low = (root - int(high * 2.0**100) * (1 << (bits - 100))) / (1 << bits)
        return cls(np.array(high), np.array(low), np.array(2.0**-100))

    def parts(self) -> tuple[Array, Array, Array]:
        """High and low part, and a bound on the error of their sum."""
        return self.high, self.low, self.error * SLACK

    def map(self, move: Callable[[Array], Any]) -> "Twofold":
        """The numbers in other places."""
        return Twofold(move(self.high), move(self.low), move(self.error))

    def behind(self, past: Array) -> "Twofold":
        """The numbers behind exact ones, along the last axis but one."""
        zeros = np.zeros_like(past)
        pairs = zip((past, zeros, zeros), _components(self), strict=True)
        return Twofold(*(np.concatenate(pair, axis=-2) for pair in pairs))

    def where(self, mask: Bools, other: Array | float = 0.0) -> "Twofold":
        """Other exact numbers where the mask is false."""
        return Twofold(
            np.where(mask, self.high, other), np.where(mask, self.low, 0.0), np.where(mask, self.error, 0.0)
        )

    def __neg__(self) -> "Twofold":
        return Twofold(-self.high, -self.low, self.error)

    def __add__(self, other: "Twofold") -> "Twofold":
        high, low = _two_sum(self.high, other.high)
        third, fourth = _two_sum(self.low, other.low)
        high, low = _fast_two_sum(high, low + third)
        high, low = _fast_two_sum(high, low + fourth)
        return Twofold(high, low, self.error + other.error + UU * np.abs(high) + lost(high))

    def __sub__(self, other: "Twofold") -> "Twofold":
        return self + -other

    def __mul__(self, other: "Twofold") -> "Twofold":
        high, low = _two_product(self.high, other.high)
        high, low = _fast_two_sum(high, low + (self.high * other.low + self.low * other.high))
        error = self.error * np.abs(other.high) + (np.abs(self.high) + self.error) * other.error
        return Twofold(high, low, error * (1 + 4 * U) + UU * np.abs(high) + lost(self.high, other.high))

    def __truediv__(self, other: "Twofold") -> "Twofold":
        first = self.high / other.high
        rest = Twofold(self.high, self.low, np.zeros_like(self.high)) - Twofold(
            other.high, other.low, np.zeros_like(other.high)
        ) * Twofold.of(first)
        high, low = _fast_two_sum(first, rest.high / other.high)
        least = np.abs(other.high) * (1 - 2 * U) - other.error
        carried = np.where(least > 0, (self.error + np.abs(high) * other.error) / np.abs(least), np.inf)
        own = np.where(least > 0, rest.error / np.abs(least), np.inf)
        return Twofold(high, low, carried + 2 * own + 4 * UU * np.abs(high) + lost(self.high))

    def __matmul__(self, other: "Twofold") -> "Twofold":
        high, low, error = _matrix_product(self.high, self.low, other.high, other.low)
        if self.error.any():
            error = error + self.error @ (np.abs(other.high) * (1 + 2 * U))
        if other.error.any():
            error = error + (np.abs(self.high) * (1 + 2 * U) + self.error) @ other.error
        return Twofold(high, low, error)

    def total(self, axes: tuple[int, ...] = (-1,), keepdims: bool = False) -> "Twofold":
        """The sum over axes, halves onto halves."""
        kept = tuple(i for i in range(self.high.ndim) if i not in {axis % self.high.ndim for axis in axes})
        shape = tuple(self.high.shape[i] for i in kept)
        order = (*(axis % self.high.ndim for axis in axes), *kept)
        count = prod(self.high.shape[axis] for axis in axes)
        found = self.map(lambda x: x.transpose(order).reshape(count, *shape))
        while found.high.shape[0] > 1:
            half = found.high.shape[0] // 2
            one, other, rest = (
                Twofold(*(x[part] for x in _components(found)))
                for part in (slice(half), slice(half, 2 * half), slice(2 * half, None))
            )
            pairs = zip(_components(one + other), _components(rest), strict=True)
            found = Twofold(*(np.concatenate(two) for two in pairs))
        if found.high.shape[0] == 0:
            found = Twofold.of(np.zeros((1, *shape)))
        wide = tuple(1 if i not in kept else n for i, n in enumerate(self.high.shape))
        return found.map(lambda x: x[0].reshape(wide) if keepdims else x[0])

    def exp(self) -> "Twofold":
        """The exponential of numbers that are not large."""
        deep = self.high < DEEPEST
        high = np.where(deep, 0.0, self.high)
        power = np.rint(high / np.log(2.0))
        zero = np.zeros_like(high)
        first, second = _two_sum(high - power * _LN2[0], -power * _LN2[1])
        rest = Twofold(first, second, zero) + Twofold(np.where(deep, 0.0, self.low), zero, zero)
        rest = (rest - Twofold(power * _LN2[2], zero, zero)).map(lambda x: x * 2.0**-HALVINGS)
        r = rest.high
        cubes = r**3 * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r / 5040))))
        found = rest + (rest * rest).map(lambda x: x / 2) + Twofold.of(cubes)
        for _ in range(HALVINGS):
            found = found.map(lambda x: 2 * x) + found * found
        found = found + Twofold.of(np.ones_like(high))
        power = power.astype(np.int32)
        high, low = np.ldexp(found.high, power), np.ldexp(found.low, power)
        relative = EXP_ERROR + raised(self.error)
        error = np.where(deep, VANISHED * far(self.error), high * relative + TINY)
        return Twofold(np.where(deep, 0.0, high), np.where(deep, 0.0, low), error)

    def log(self) -> "Twofold":
        """The logarithm of positive numbers, whatever the library's own is worth."""
        first = Twofold.of(np.log(self.high))
        off = self * (-first).exp() - Twofold.of(np.ones_like(self.high))
        near = np.abs(off.high) + off.error
        found = first + off
        return Twofold(found.high, found.low, found.error + np.where(near < 0.5, near**2, np.inf))


def _components(x: Twofold) -> tuple[Array, Array, Array]:
    return x.high, x.low, x.error


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _fast_two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, b - (total - a)


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _matrix_product(x_high: Array, x_low: Array, y_high: Array, y_low: Array) -> tuple[Array, Array, Array]:
    """The product of two matrices in slices, and a bound on its error."""
    count = x_high.shape[-1]
    bits = (53 - max(count, 1).bit_length()) // 2
    of_x, top_x = _slices(x_high, x_low, -1, bits)
    of_y, top_y = _slices(y_high, y_low, -2, bits)
    batch = np.broadcast_shapes(x_high.shape[:-2], y_high.shape[:-2])
    high = np.zeros((*batch, x_high.shape[-2], y_high.shape[-1]))
    low = np.zeros_like(high)
    for both in reversed(range(SLICES)):
        for i in range(both + 1):
            exact = of_x[i] @ of_y[both - i]
            high, rest = _two_sum(high, exact)
            low += rest
    high, low = _fast_two_sum(high, low)
    cut = count * (SLICES + 3) * 2.0 ** (-SLICES * bits) + count * SLICES**4 * U**2
    return high, low, cut * (top_x * top_y) + count * lost(top_x, top_y)


def _slices(high: Array, low: Array, axis: int, bits: int) -> tuple[list[Array], Array]:
    """Numbers as sums of slices of so many bits, and the power of two that none along the axis exceeds."""
    top = np.abs(high).max(axis=axis, keepdims=True, initial=0.0)
    top = np.ldexp(1.0, np.frexp(top)[1] + 1) * (top > 0)
    found, quantum = [], top
    for _ in range(SLICES):
        quantum = quantum * 2.0**-bits
        shift = 1.5 * 2.0**52 * quantum
        part = (high + shift) - shift
        found.append(part)
        high, low = _two_sum(high - part, low)
    return found, top
