"""Matrices of dyadic numbers: integers over one power of two, multiplied without rounding."""

from dataclasses import dataclass
from typing import Any

import flint
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Exact:
    """The matrix integers * 2^exponent."""

    integers: Any  # flint.fmpz_mat
    exponent: int

    @classmethod
    def of(cls, matrix: npt.NDArray[np.float64]) -> "Exact":
        """A float64 matrix, every number exactly; NaN and Inf become zero, since no ball depends on them."""
        finite = np.where(np.isfinite(matrix), matrix, 0.0)
        mantissas, exponents = np.frexp(finite)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        zeros = np.where(whole == 0, 1, whole)  # trailing zeros are shifted out
        odd = np.frexp((zeros & -zeros).astype(np.float64))[1] - 1
        least = np.where(whole == 0, np.iinfo(np.int32).max, exponents - 53 + odd)
        exponent = min(0, int(least.min(initial=0)))
        scaled = np.ldexp(finite, -exponent)
        if np.abs(scaled).max(initial=0.0) < 2.0**62:  # whole numbers that int64 holds
            return cls(flint.fmpz_mat(*finite.shape, scaled.astype(np.int64).ravel().tolist()), exponent)
        shifts = (np.where(whole == 0, exponent + 53, exponents) - 53 - exponent).ravel().tolist()
        numbers = whole.ravel().tolist()
        integers = [n << k if k >= 0 else n >> -k for n, k in zip(numbers, shifts, strict=True)]
        return cls(flint.fmpz_mat(*finite.shape, integers), exponent)

    def __matmul__(self, other: "Exact") -> "Exact":
        """The exact product."""
        return Exact(self.integers * other.integers, self.exponent + other.exponent)

    def transposed(self) -> "Exact":
        """Rows and columns swapped."""
        return Exact(self.integers.transpose(), self.exponent)

    def plus_row(self, row: "Exact") -> "Exact":
        """A row added to every row."""
        ones = Exact(flint.fmpz_mat(self.integers.nrows(), 1, [1] * self.integers.nrows()), 0)
        left, right, exponent = _aligned(self, ones @ row)
        return Exact(left + right, exponent)

    def above(self, other: "Exact") -> "Exact":
        """The rows of this matrix, then those of the other."""
        left, right, exponent = _aligned(self, other)
        entries = [*left.entries(), *right.entries()]
        return Exact(flint.fmpz_mat(left.nrows() + right.nrows(), left.ncols(), entries), exponent)

    def centred(self) -> tuple["Exact", list[Any] | None]:
        """The matrix less its first row, and that row as balls: averages of equal rows stay exact."""
        rows = self.integers.nrows()
        if rows == 0:
            return self, None
        first = [self.integers[0, d] for d in range(self.integers.ncols())]
        ones = flint.fmpz_mat(rows, 1, [1] * rows)
        less = self.integers - ones * flint.fmpz_mat(1, len(first), first)
        return Exact(less, self.exponent), [flint.arb((x, self.exponent)) for x in first]

    def integer(self, i: int, j: int) -> int:
        """The integer of one entry."""
        return int(self.integers[i, j])

    def ball(self, i: int, j: int) -> Any:
        """One entry, radius zero."""
        return flint.arb((self.integers[i, j], self.exponent))

    def difference(self, i: int, j: int, k: int) -> Any:
        """Entry (i, j) less entry (i, k), radius zero."""
        return flint.arb((self.integers[i, j] - self.integers[i, k], self.exponent))

    def matrix(self) -> Any:
        """The whole as an arb_mat of radius zero."""
        balls = [flint.arb((x, self.exponent)) for x in self.integers.entries()]
        return flint.arb_mat(self.integers.nrows(), self.integers.ncols(), balls)

    def balls(self) -> Any:
        """The whole as an object array of balls of radius zero."""
        out = np.empty((self.integers.nrows(), self.integers.ncols()), dtype=object)
        for place in np.ndindex(out.shape):
            out[place] = self.ball(*place)
        return out


def _aligned(left: Exact, right: Exact) -> tuple[Any, Any, int]:
    """Both integer matrices over the smaller power of two."""
    exponent = min(left.exponent, right.exponent)
    return (
        left.integers * (1 << (left.exponent - exponent)),
        right.integers * (1 << (right.exponent - exponent)),
        exponent,
    )
