"""Arrays that are measured: their library, and their values in a dtype wide enough to sum in."""

from typing import Any

import array_api_compat

from mha_core.arrays import cast, compute_dtype
from mha_core.checks import shape_of
from mha_core.result import Array


def measured(name: str, x: Array, axes: str, least: int) -> tuple[Any, Array]:
    """The library of `x`, and `x` in the dtype to compute in, once it has as many axes as needed."""
    xp = array_api_compat.array_namespace(x)
    if len(x.shape) < least:
        raise ValueError(f"{name} has shape {shape_of(x)} but needs {axes}")
    return xp, cast(xp, x, compute_dtype(xp, x.dtype))


def scaled(xp: Any, x: Array, axis: int | tuple[int, ...]) -> Array:
    """`x` over its greatest magnitude along the axes, so that no square overflows; what is zero stays zero."""
    greatest = xp.max(xp.abs(x), axis=axis, keepdims=True)
    return x / xp.where(greatest == 0, xp.ones_like(greatest), greatest)


def ratio(xp: Any, products: Array, squares: Array) -> Array:
    """`products` (..., k, k) over the norms of both, whose squares are (..., k); NaN where one of them is zero."""
    norms = xp.sqrt(xp.expand_dims(squares, axis=-1) * xp.expand_dims(squares, axis=-2))
    found = products / xp.where(norms == 0, xp.ones_like(norms), norms)
    return xp.where(norms == 0, xp.full_like(found, float("nan")), xp.clip(found, -1.0, 1.0))


def cosines(xp: Any, rows: Array) -> Array:
    """The cosines of the angles between rows (k, n): (k, k)."""
    rows = scaled(xp, rows, -1)
    return ratio(xp, xp.matmul(rows, xp.matrix_transpose(rows)), xp.sum(rows * rows, axis=-1))
