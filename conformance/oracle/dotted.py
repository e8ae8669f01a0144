"""Products of one row with many, without rounding: in float64 where every partial sum is a whole number it holds."""

from typing import Any

import flint
import numpy as np

from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.normal_form import Array

LIMB = 20
"""Bits of a digit: products of two have 40, and sums of 2^12 of them are exact in float64."""
DEEPEST = 60
"""Bits that the numbers of an array may have between the largest and the last place of any."""
BLOCK = 1 << 20
"""Numbers that are taken apart at once."""


def dotted(row: Array, rows: Array) -> Exact:
    """Products of a row, [d], and each of some rows, [n, d], exactly: [1, n]."""
    of_row = _whole(row[None])
    if rows.shape[-1] > 1 << (52 - 2 * LIMB) or of_row is None:
        return Exact.of(row[None]) @ Exact.of(rows).transposed()
    numbers, least = of_row
    parts = [part[0] for part in _digits(numbers)]
    step, found = max(BLOCK // max(rows.shape[-1], 1), 1), []
    places: list[int] = []
    for start in range(0, len(rows), step):
        of_block = _whole(rows[start : start + step])
        if of_block is None:
            return Exact.of(row[None]) @ Exact.of(rows).transposed()
        found.append(_summed(parts, of_block[0]))
        places.append(of_block[1])
    common = min(places, default=0)
    integers = [n << (place - common) for sums, place in zip(found, places, strict=True) for n in sums]
    return Exact(flint.fmpz_mat(1, len(rows), integers), least + common)


def _whole(x: Array) -> tuple[Any, int] | None:
    """Numbers as whole ones over a power of two, int64, NaN and Inf as zero; None where they lie too far apart."""
    finite = np.where(np.isfinite(x), x, 0.0)
    mantissas, exponents = np.frexp(finite)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    there = whole != 0
    least = int((exponents - 53 + lowest).min(initial=1 << 20, where=there))
    if int(exponents.max(initial=-(1 << 20), where=there)) - least > DEEPEST:
        return None
    least = 0 if least == 1 << 20 else least
    return np.ldexp(finite, -least).astype(np.int64), least


def _digits(numbers: Any) -> list[Array]:
    """Whole numbers as digits of LIMB bits, the lowest first, each with the number's sign; float64."""
    size, signs = np.abs(numbers), np.sign(numbers).astype(np.float64)
    found = []
    while True:
        found.append((size & ((1 << LIMB) - 1)) * signs)
        size = size >> LIMB
        if not size.any():
            return found


def _summed(parts: list[Array], rows: Any) -> list[int]:
    """Products of a row in digits and rows of whole numbers."""
    others = _digits(rows)
    totals: list[Any] = [np.zeros(len(rows), np.int64) for _ in range(len(parts) + len(others) - 1)]
    for i, one in enumerate(parts):
        for j, other in enumerate(others):
            totals[i + j] += (other @ one).astype(np.int64)
    found = [0] * len(rows)
    for place, total in enumerate(totals):
        if total.any():
            found = [n + (more << (LIMB * place)) for n, more in zip(found, total.tolist(), strict=True)]
    return found
