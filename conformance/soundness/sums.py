"""Orders of summation of a matrix product, and operands of fewer bits."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from conformance.vectors.case import Array

Product = Callable[[Array, Array], Array]
"""[..., n, d], [..., d, m] -> [..., n, m], in the dtype of the first."""


def _running(
    a: Array,
    b: Array,
    order: Iterable[int],
    step: Callable[[Array, Array, Array, Array], tuple[Array, Array]],
) -> Array:
    """One term after the other: step takes the sum, its compensation and a term's two factors."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    total, rest = np.zeros(shape, a.dtype), np.zeros(shape, a.dtype)
    for d in order:
        total, rest = step(total, rest, a[..., :, d : d + 1], b[..., d : d + 1, :])
    return total


def sequential(a: Array, b: Array) -> Array:
    """From the first term to the last."""
    return _running(a, b, range(a.shape[-1]), lambda t, r, x, y: (t + x * y, r))


def reverse(a: Array, b: Array) -> Array:
    """From the last term to the first."""
    return _running(a, b, reversed(range(a.shape[-1])), lambda t, r, x, y: (t + x * y, r))


def fused(a: Array, b: Array) -> Array:
    """Fused multiply-add: the product is not rounded before it is added (but twice in float64, nearly)."""
    wide = np.longdouble

    def step(t: Array, r: Array, x: Array, y: Array) -> tuple[Array, Array]:
        return (t.astype(wide) + x.astype(wide) * y.astype(wide)).astype(a.dtype), r

    return _running(a, b, range(a.shape[-1]), step)


def compensated(a: Array, b: Array) -> Array:
    """Kahan's sum; of an infinite sum nothing is lost."""

    def step(t: Array, r: Array, x: Array, y: Array) -> tuple[Array, Array]:
        term = x * y - r
        total = t + term
        return total, np.where(np.isinf(total), 0, (total - t) - term).astype(total.dtype)

    return _running(a, b, range(a.shape[-1]), step)


def pairwise(a: Array, b: Array) -> Array:
    """NumPy's own sum along the last axis, in pairs of blocks."""
    return np.ascontiguousarray(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :]).sum(-1)


PRODUCTS: Mapping[str, Product] = {
    "matmul": lambda a, b: a @ b,
    "einsum": lambda a, b: np.einsum("...nd,...dm->...nm", a, b),
    "sequential": sequential,
    "reverse": reverse,
    "fused": fused,
    "compensated": compensated,
    "pairwise": pairwise,
}
"""By name."""


def fewer_bits(x: Array, bits: int, truncated: bool) -> Array:
    """To so many significant bits, to nearest or towards zero."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    whole = (np.trunc if truncated else np.round)(np.ldexp(mantissa, bits))
    return np.ldexp(whole, exponent - bits).astype(x.dtype)
