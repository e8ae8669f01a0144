"""What is measured of the heads' outputs: rank, mean, variance, correlation, redundancy."""

import math
from typing import Any

from mha_core.analysis.wide import cosines, measured, ratio, scaled
from mha_core.checks import shape_of
from mha_core.result import Array


def rank(x: Array, rtol: float | None = None) -> Array:
    """The numerical rank: how many singular values exceed rtol times the largest (DOC-19, DOC-23 to DOC-25).

    The document bounds the rank of a head's output by d_k, which holds if d_v <= d_k: the bound is
    min(q_len, kv_len, d_v, rank of the weights); and that of the concatenation by h * d_k, which holds if
    d_v <= d_k: it is min(q_len, h * d_v), and behind w_o also d_out.

    Args:
        x: (..., n, d): an output, a concatenation, or weights.
        rtol: None is max(n, d) times the spacing of the dtype computed in.

    Returns:
        Integers, (...).

    Raises:
        ValueError: there are fewer than two axes.

    >>> import numpy as np
    >>> int(rank(np.asarray([[1.0, 2.0], [2.0, 4.0]])))
    1
    """
    xp, x = measured("x", x, "(..., n, d)", 2)
    return xp.sum(xp.astype(significant(xp, xp.linalg.svdvals(x), x, rtol), xp.int32), axis=-1)


def significant(xp: Any, values: Array, x: Array, rtol: float | None) -> Array:
    """Which singular values, largest first, count for the rank of `x`."""
    limit = max(x.shape[-2:]) * float(xp.finfo(x.dtype).eps) if rtol is None else rtol
    return values > limit * values[..., :1]


def importance(outputs: Array) -> Array:
    """I_i = |E[head_i]|, the Frobenius norm of each head's mean output (DOC-105).

    The document takes it as a head's contribution, which does not hold: a head that gives -1 and 1 equally often
    has the importance 0 and can be the whole output; `head_importance` heeds what the layer makes of a head.

    Args:
        outputs: (samples..., H, q_len, d_v), equally likely.

    Returns:
        (H,).

    Raises:
        ValueError: there are fewer than three axes.

    >>> import numpy as np
    >>> importance(np.asarray([[[[3.0, 4.0]], [[1.0, 0.0]]], [[[3.0, 4.0]], [[-1.0, 0.0]]]])).tolist()
    [5.0, 0.0]
    """
    xp, outputs = measured("outputs", outputs, "(samples..., H, q_len, d_v)", 3)
    mean = xp.mean(_samples(xp, outputs, 3), axis=0)
    return xp.sqrt(xp.sum(mean * mean, axis=(-2, -1)))


def variance(outputs: Array) -> Array:
    """The total variance of each head's output over the samples: the trace of its covariance (DOC-107).

    The document bounds the layer's variance by the sum over the heads, which holds if the heads are uncorrelated
    and no w_o stretches; that of the concatenation is the sum. For the layer pass `output[:, None, ...]`.

    Args:
        outputs: (samples..., H, q_len, d_v), equally likely.

    Returns:
        (H,).

    Raises:
        ValueError: there are fewer than three axes.

    >>> import numpy as np
    >>> variance(np.asarray([[[[1.0, 2.0]]], [[[-1.0, 2.0]]]])).tolist()
    [1.0]
    """
    xp, outputs = measured("outputs", outputs, "(samples..., H, q_len, d_v)", 3)
    return xp.sum(xp.var(_samples(xp, outputs, 3), axis=0), axis=(-2, -1))


def correlation(outputs: Array) -> Array:
    """Between coordinates of heads: rho = Cov(a, b) / (sigma_a sigma_b), for each and each (DOC-96).

    The document measures the independence of heads by it, which does not hold: uncorrelated heads may depend on
    each other. Heads of several dimensions have a matrix of correlations, and so this is one for each pair.

    Args:
        outputs: (samples..., H, d_v), equally likely.

    Returns:
        (H, d_v, H, d_v), from -1 to 1; NaN where a coordinate is constant.

    Raises:
        ValueError: there are fewer than two axes.

    >>> import numpy as np
    >>> correlation(np.asarray([[[1.0], [2.0]], [[-1.0], [-2.0]]]))[0, 0, 1, 0].item()
    1.0
    """
    xp, outputs = measured("outputs", outputs, "(samples..., H, d_v)", 2)
    h, d_v = outputs.shape[-2:]
    flat = xp.reshape(_samples(xp, outputs, 2), (-1, h * d_v))
    centred = flat - xp.mean(flat, axis=0)
    constant = xp.all(flat == flat[:1, :], axis=0)  # its mean may be rounded, and then it seems to vary
    centred = xp.where(constant, xp.zeros_like(centred), centred)
    return xp.reshape(cosines(xp, xp.matrix_transpose(centred)), (h, d_v, h, d_v))


def redundancy(outputs: Array) -> Array:
    """R_ij = |head_i head_j^T| / (|head_i| |head_j|), Frobenius norms (DOC-106).

    The document takes it as redundancy, which does not hold: equal content in turned coordinates gets 0, and a
    head of rank above 1 compared with itself gets less than 1.

    Args:
        outputs: (..., H, q_len, d_v).

    Returns:
        (..., H, H), from 0 to 1; NaN where a head is zero.

    Raises:
        ValueError: there are fewer than three axes.

    >>> import numpy as np
    >>> round(redundancy(np.stack([np.eye(2), np.eye(2)]))[0, 1].item(), 3)
    0.707
    """
    xp, outputs = measured("outputs", outputs, "(..., H, q_len, d_v)", 3)
    outputs = scaled(xp, outputs, (-2, -1))
    one, other = xp.expand_dims(outputs, axis=-3), xp.expand_dims(outputs, axis=-4)
    products = xp.matmul(one, xp.matrix_transpose(other))  # (..., H, H, q_len, q_len)
    norms = xp.sqrt(xp.sum(products * products, axis=(-2, -1)))
    return ratio(xp, norms, xp.sum(outputs * outputs, axis=(-2, -1)))


def _samples(xp: Any, x: Array, kept: int) -> Array:
    """(samples..., kept axes) with the samples in one axis, of which at least one is needed."""
    shape = shape_of(x)
    count = math.prod(shape[: len(shape) - kept])
    if count == 0:
        raise ValueError(f"outputs has shape {shape} but needs at least one sample")
    return xp.reshape(x, (count, *shape[len(shape) - kept :]))
