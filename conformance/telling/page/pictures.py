"""Arrays of any rank as a few matrices, cut where they are large, which is said."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from conformance.telling.page.heat import Scale, heat_map
from conformance.telling.page.words import index, number, place, shape
from conformance.vectors.case import Array

LARGEST = 48
"""Rows and columns that are shown of a matrix."""
MANY = 6
"""Matrices that are shown of an array, if nobody says otherwise."""


@dataclass(frozen=True)
class Matrix:
    """One matrix of an array."""

    label: str  # its place along the leading axes; empty where there are none
    svg: Markup
    words: str = ""  # the same in words


@dataclass(frozen=True)
class Picture:
    """One array."""

    name: str
    axes: str  # what rows and columns are, in words
    facts: str  # shape, dtype, range
    cut: str  # what is not shown; empty where all is
    matrices: tuple[Matrix, ...]


def picture(
    name: str,
    array: Array,
    scale: Scale,
    *,
    near: Sequence[int] = (),
    rows: Sequence[int] | None = None,
    limit: float | None = None,
    facts: str = "",
    many: int = MANY,
) -> Picture:
    """An array as matrices of its last two axes.

    Args:
        name: what it is called.
        array: any shape and real dtype.
        scale: what the colours mean.
        near: an index of the array; what is cut is cut around it.
        rows: what the rows are numbered by, where they are some of a larger array.
        limit: the size of the strongest colour; the largest finite one by default.
        facts: what to say of it in addition to shape and range.
        many: how many matrices.
    """
    values = np.asarray(array, np.float64)
    values = values.reshape((1,) * (2 - values.ndim) + values.shape)
    near = tuple(near) if len(near) == values.ndim else (0,) * values.ndim
    told = ", ".join(filter(None, (shape(array.shape), facts, _range(values, scale))))
    if not values.size:
        return Picture(name, "", f"{told}, empty", "", ())
    limit = _largest(values) if limit is None else limit
    top, left = (_window(size, centre) for size, centre in zip(values.shape[-2:], near[-2:], strict=True))
    places = _places(values.shape[:-2], near[:-2], many)
    numbers = (
        str(top[0]) if rows is None else ",".join(str(rows[i]) for i in range(*top))
    )  # of the rows, for a reader of the screen
    matrices = []
    for at in places:
        part = values[at][slice(*top), slice(*left)]
        where = f"{name}{index(at)}" if at else name
        label = f"{where}, {part.shape[0]} by {part.shape[1]}, {_range(part, scale)}"
        svg = heat_map(part, scale, limit, label, numbers, str(left[0]))
        matrices.append(Matrix(index(at) if at else "", svg, words(name, at)))
    return Picture(name, axes(name), told, _cut(values.shape, top, left, len(places)), tuple(matrices))


HEADED = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "grad_output",
    "output",
    "weights",
    "mask",
    "attn_bias",
)
"""Arrays with a heads axis before their last two."""
ROWS = {"key": "keys", "value": "keys", "past_key": "keys", "past_value": "keys"}
COLUMNS = {"weights": "keys", "mask": "keys", "attn_bias": "keys"}


def words(name: str, where: tuple[int, ...]) -> str:
    """Where a matrix is, in words."""
    return place(where) if base(name) in HEADED else index(where) if where else ""


def axes(name: str) -> str:
    """What the rows and the columns of a matrix are; empty of arrays that have none of those."""
    of = base(name)
    if of not in HEADED:
        return ""
    return f"rows: {ROWS.get(of, 'queries')}, columns: {COLUMNS.get(of, 'width')}"


def base(name: str) -> str:
    """The array that a picture is of: `output` of `expected output`."""
    return name.rpartition(" ")[2]


def largest(*arrays: Array) -> float:
    """The size that has the strongest colour where several arrays share one scale."""
    return max((_largest(np.asarray(array, np.float64)) for array in arrays), default=0.0)


def _largest(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0))


def _range(values: Array, scale: Scale) -> str:
    if scale == "flag":
        return f"{int((values != 0).sum())} of {values.size} true"
    finite = values[np.isfinite(values)]
    words = []
    if finite.size:
        low, high = float(finite.min()), float(finite.max())
        words.append(f"all {number(low)}" if low == high else f"{number(low)} to {number(high)}")
    for word, where in (("NaN", np.isnan(values)), ("infinite", np.isinf(values))):
        if where.any():
            words.append(f"{int(where.sum())} {word}")
    return ", ".join(words)


def _window(size: int, centre: int) -> tuple[int, int]:
    start = max(0, min(centre - LARGEST // 2, size - LARGEST))
    return start, min(size, start + LARGEST)


def _places(leading: tuple[int, ...], near: tuple[int, ...], many: int) -> list[tuple[int, ...]]:
    """The matrices that are shown: the first ones, and the one that matters in any case."""
    places = [tuple(int(i) for i in place) for place in np.ndindex(*leading)]
    first = places[:many]
    return first if near in first else [*first[: many - 1], near]


def _cut(sizes: tuple[int, ...], top: tuple[int, int], left: tuple[int, int], shown: int) -> str:
    words, every = [], int(np.prod(sizes[:-2]))
    if shown < every:
        words.append(f"{shown} of {every} matrices")
    for word, size, (start, end) in (("rows", sizes[-2], top), ("columns", sizes[-1], left)):
        if end - start < size:
            words.append(f"{word} {start} to {end - 1} of {size}")
    return f"shown: {', '.join(words)}" if words else ""
