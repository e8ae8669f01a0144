"""Angles and spans of the heads' projections and weights."""

from typing import Any

import array_api_compat

from mha_core.analysis.outputs import rank, significant
from mha_core.analysis.wide import cosines, measured
from mha_core.result import Array


def cosine(w: Array) -> Array:
    """The angles between heads: cos theta_ij = <W_i, W_j> / (|W_i| |W_j|), Frobenius products (DOC-93).

    The document takes it as a measure of orthogonality, which holds if d_k = 1: wider, orthogonal spans have
    the cosine 0 and not the reverse. See `subspace_angles`.

    Args:
        w: (H, d_in, d), the projections of one kind.

    Returns:
        (H, H), from -1 to 1; NaN where a projection is zero.

    Raises:
        ValueError: there are fewer than three axes.

    >>> import numpy as np
    >>> cosine(np.stack([np.eye(2), np.diag([1.0, -1.0]), 3 * np.eye(2)])).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    xp, w = measured("w", w, "(H, d_in, d)", 3)
    return cosines(xp, xp.reshape(w, (w.shape[0], w.shape[1] * w.shape[2])))


def diversity(w: Array) -> float:
    """D = the mean of 1 - |cos theta_ij| over the pairs of heads, i != j (DOC-94).

    The document takes it as the heads' diversity, which does not hold: a head and the same head with queries and
    keys turned by 90 degrees have equal outputs and the diversity 1.

    Args:
        w: (H, d_in, d), the projections of one kind.

    Returns:
        From 0 to 1; NaN for one head, and where a projection is zero.

    Raises:
        ValueError: there are fewer than three axes.

    >>> import numpy as np
    >>> diversity(np.stack([np.eye(2), np.asarray([[0.0, -1.0], [1.0, 0.0]])]))
    1.0
    """
    between = cosine(w)
    xp = array_api_compat.array_namespace(between)
    h = between.shape[0]
    if h == 1:
        return float("nan")
    pairs = xp.eye(h, dtype=between.dtype) == 0
    apart = xp.where(pairs, 1 - xp.abs(between), xp.zeros_like(between))
    return float(xp.sum(apart)) / (h * (h - 1))


def subspace_angles(first: Array, second: Array, rtol: float | None = None) -> Array:
    """The principal angles between the spans of the columns of two projections, in radians (DOC-83, DOC-86).

    The document says that the spans of W_i^Q and W_j^Q are orthogonal, which does not hold: then all angles would
    be pi/2. Small angles are taken from their sines and large ones from their cosines, for both to be accurate.

    Args:
        first: (d_in, a).
        second: (d_in, b), of the same library and dtype.
        rtol: singular values below rtol times the largest are none, as in `rank`.

    Returns:
        The angles from the smallest, min(rank a, rank b) of them: 0 for a direction in common.

    Raises:
        ValueError: there are not two axes, or the spans lie in different spaces.

    >>> import numpy as np
    >>> plane = np.eye(3)[:, :2]
    >>> subspace_angles(plane, np.asarray([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])).round(4).tolist()
    [0.0, 0.7854]
    """
    xp, first = measured("first", first, "(d_in, a)", 2)
    _, second = measured("second", second, "(d_in, b)", 2)
    if first.shape[0] != second.shape[0]:
        raise ValueError(f"second has d_in={second.shape[0]} but first has d_in={first.shape[0]}")
    one, other = _basis(xp, first, rtol), _basis(xp, second, rtol)
    if one.shape[1] < other.shape[1]:
        one, other = other, one
    products = xp.matmul(xp.matrix_transpose(one), other)
    _, cosines, right = xp.linalg.svd(products, full_matrices=False)
    cosines = xp.clip(cosines, 0.0, 1.0)
    # the principal vectors of `other`, and what of each lies outside the span of `one`
    vectors = xp.matmul(other, xp.matrix_transpose(right))
    outside = vectors - xp.matmul(one, xp.matmul(products, xp.matrix_transpose(right)))
    sines = xp.clip(xp.sqrt(xp.sum(outside * outside, axis=0)), 0.0, 1.0)
    return xp.where(cosines * cosines >= 0.5, xp.asin(sines), xp.acos(cosines))


def coverage(weights: Array, rtol: float | None = None) -> tuple[int, tuple[int, ...]]:
    """The dimension of the sum of the row spans of the heads' weights, and of each head's alone (DOC-95).

    The document speaks of the union of the spans, which holds if one of them contains the others: otherwise a
    union is no space, and the space that the heads cover together is the sum.

    Args:
        weights: (H, q_len, kv_len).
        rtol: see `rank`.

    Returns:
        The dimension of the sum, at most kv_len, and H dimensions.

    Raises:
        ValueError: there are fewer than three axes.

    >>> import numpy as np
    >>> coverage(np.asarray([[[0.25, 0.75]], [[0.75, 0.25]]]))
    (2, (1, 1))
    """
    xp, weights = measured("weights", weights, "(H, q_len, kv_len)", 3)
    h, q_len, kv_len = weights.shape
    together = xp.reshape(weights, (h * q_len, kv_len))
    each = tuple(int(rank(weights[i, ...], rtol)) for i in range(h))
    return int(rank(together, rtol)), each


def _basis(xp: Any, w: Array, rtol: float | None) -> Array:
    """An orthonormal basis of the span of the columns, (d_in, rank)."""
    left, values, _ = xp.linalg.svd(w, full_matrices=False)
    return left[:, : int(xp.sum(xp.astype(significant(xp, values, w, rtol), xp.int32)))]
