"""Float64 arrays with a proven bound on their own error.

Each operation rounds to nearest: its result is off by at most `U` of its size, beside what its operands are off by.
Products of two such small terms, and the roundings of the bounds themselves, are covered by one factor at the end,
`SLACK`: bounds are sums and products of numbers that are not negative, of fewer than 2^22 roundings each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.vectors.generate.normal_form import Array, Bools

U = 2.0**-53
TINY = 2.0**-1000
"""More than underflow costs any one operation."""
SLACK = 1 + 2.0**-30
EXP_ERROR = 100 * U
"""A polynomial of degree 13 by Horner on |r| <= 0.35: 2 * 14 U times the ratio of the sums of absolute values, 2,
and 2^-57 for what is cut off, and the reduction."""
DEEPEST = -700.0
"""Where exp is taken as zero."""
VANISHED = 2.0**-1008
"""More than exp is there."""
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fefa2000p-1"), float.fromhex("0x1.9ef35793c7673p-41")
_FACTORIALS = [1.0]
for _n in range(1, 14):
    _FACTORIALS.append(_FACTORIALS[-1] * _n)
BLOCK = 512
"""Terms that one matrix product sums up: the error grows with their number, and with that of the blocks."""


@dataclass(frozen=True)
class Near:
    """Numbers and how far each may be from the exact one."""

    value: Array
    error: Array | None = None  # None: exact

    @classmethod
    def of(cls, exact: Array) -> "Near":
        """Numbers that are exact."""
        return cls(exact)

    @classmethod
    def root(cls, number: int) -> "Near":
        """1 / sqrt(number)."""
        value = np.array(1.0 / np.sqrt(float(number)))
        return cls(value, 3 * U * value)

    @property
    def bound(self) -> Array:
        """The error, where it is zero too."""
        return np.zeros_like(self.value) if self.error is None else self.error

    def parts(self) -> tuple[Array, Array, Array]:
        """High and low part, and a bound on the error of their sum."""
        return self.value, np.zeros_like(self.value), np.broadcast_to(self.bound * SLACK, self.value.shape)

    def map(self, move: Callable[[Array], Any]) -> "Near":
        """The numbers in other places."""
        if self.error is None:
            return Near(move(self.value))
        return Near(move(self.value), move(np.broadcast_to(self.error, self.value.shape)))

    def behind(self, past: Array) -> "Near":
        """The numbers behind exact ones, along the last axis but one."""
        error = np.concatenate([np.zeros_like(past), np.broadcast_to(self.bound, self.value.shape)], axis=-2)
        return Near(np.concatenate([past, self.value], axis=-2), error)

    def where(self, mask: Bools, other: Array | float = 0.0) -> "Near":
        """Other exact numbers where the mask is false."""
        value = np.where(mask, self.value, other)
        return Near(value, None if self.error is None else np.where(mask, self.error, 0.0))

    def __neg__(self) -> "Near":
        return Near(-self.value, self.error)

    def __add__(self, other: "Near") -> "Near":
        value = self.value + other.value
        return Near(value, _sum(self.error, other.error, U * np.abs(value)))

    def __sub__(self, other: "Near") -> "Near":
        return self + -other

    def __mul__(self, other: "Near") -> "Near":
        value = self.value * other.value
        error = U * np.abs(value) + lost(self.value, other.value)
        if self.error is not None:
            error = error + self.error * np.abs(other.value)
        if other.error is not None:
            error = error + (np.abs(self.value) + self.bound) * other.error
        return Near(value, error)

    def __truediv__(self, other: "Near") -> "Near":
        value = self.value / other.value
        least = np.abs(other.value) - other.bound
        off = np.where(least > 0, (self.bound + np.abs(value) * other.bound) / np.abs(least), np.inf)
        return Near(value, off + U * np.abs(value) + lost(self.value))

    def __matmul__(self, other: "Near") -> "Near":
        count = self.value.shape[-1]
        value = _product(self.value, other.value)
        size, of_other = np.abs(self.value), np.abs(other.value)
        terms = min(count, BLOCK) + -(-count // BLOCK)
        products = _product(size, of_other)
        error = terms * U * products + count * TINY * ~_all_zero(size, of_other, products)
        if self.error is not None:
            error = error + self.error @ of_other
        if other.error is not None:
            error = error + (size + self.bound) @ other.error
        return Near(value, error)

    def total(self, axes: tuple[int, ...] = (-1,), keepdims: bool = False) -> "Near":
        """The sum over axes."""
        count = int(np.prod([self.value.shape[axis] for axis in axes]))
        if axes == (-1,) and count > BLOCK:
            found = self @ Near(np.ones((count, 1)))
            return found if keepdims else found.map(lambda x: x[..., 0])
        value = self.value.sum(axis=axes, keepdims=keepdims)
        error = self.bound + count * U * np.abs(self.value)
        return Near(value, np.broadcast_to(error, self.value.shape).sum(axis=axes, keepdims=keepdims))

    def exp(self) -> "Near":
        """The exponential of numbers that are not large."""
        x = self.value
        power = np.rint(x * (1 / np.log(2.0)))
        rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
        value = np.full_like(x, 1 / _FACTORIALS[13])
        for factorial in reversed(_FACTORIALS[:13]):
            value *= rest
            value += 1 / factorial
        value = np.ldexp(value, power.astype(np.int32))
        deep = x < DEEPEST
        relative = EXP_ERROR if self.error is None else EXP_ERROR + raised(self.error)
        error = np.where(deep, VANISHED * far(self.error), value * relative)
        return Near(np.where(deep, 0.0, value), error)

    def log(self) -> "Near":
        """The logarithm of positive numbers, whatever the library's own is worth."""
        first = np.log(self.value)
        off = Near(self.value) * Near(-first).exp() - Near(np.ones_like(first))
        found = Near(first) + off
        least = self.value - self.bound
        carried = np.where(least > 0, self.bound / np.abs(least), np.inf)
        near = np.abs(off.value) + off.bound
        return Near(found.value, found.bound + np.where(near < 0.5, near**2, np.inf) + carried)


def lost(*factors: Array) -> Array:
    """What underflow may cost a product: nothing where a factor is zero."""
    there: Any = factors[0] != 0
    for factor in factors[1:]:
        there = there & (factor != 0)
    return TINY * there


def _all_zero(x: Array, y: Array, products: Array) -> Bools:
    """Where every product of a sum has a factor that is zero: none has underflowed."""
    found: Bools = products == 0
    if not found.any():
        return found
    least = [np.where(z > 0, z, np.inf) for z in (x, y)]
    smallest = least[0].min(axis=-1, keepdims=True, initial=np.inf) * least[1].min(initial=np.inf)
    return found & (smallest >= TINY)


def _sum(*errors: Array | None) -> Array:
    found: Array = sum((x for x in errors if x is not None), np.zeros(()))
    return found


def raised(error: Array) -> Array:
    """At least exp(error) - 1."""
    return np.where(error <= 1, error + error**2, np.inf)


def far(error: Array | None) -> Array | float:
    """What an argument's error may do where exp is taken as zero."""
    return 1.0 if error is None else np.where(error <= 1, 3.0, np.inf)


def _product(x: Array, y: Array) -> Array:
    """The matrix product, its sums in blocks."""
    count = x.shape[-1]
    if count <= BLOCK:
        return x @ y
    total = x[..., :BLOCK] @ y[..., :BLOCK, :]
    for start in range(BLOCK, count, BLOCK):
        total += x[..., start : start + BLOCK] @ y[..., start : start + BLOCK, :]
    return total
