"""exp, log and tanh: NumPy's own, or off by as much as spec/bounds.md promises to admit."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.vectors.case import Array

PROMISED = {"exp": 4.0, "exp2": 4.0, "log": 4.0, "tanh": 5.0}
"""Largest relative error of each function, in units of u of what is computed in."""

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
}

Off = Literal["", "at random", "in waves"]
"""Not at all; by a number that depends on the last bits of the argument, or by one that changes slowly with it."""

_MIXED = np.uint64(0x9E3779B97F4A7C15)


def elementary(name: str, x: Any, off: Off) -> Any:
    """One function of a float32 or float64 array in its dtype; equal arguments give equal results."""
    if not off:
        return FUNCTIONS[name](x)
    x = np.asarray(x)
    exact = FUNCTIONS[name](x.astype(np.longdouble))
    # half a unit is left for the rounding of the result
    size = (PROMISED[name] - 1) * UNIT_ROUNDOFF[x.dtype.name]
    moved = np.where(np.isfinite(exact), exact * (1 + size * _off(x, off).astype(np.longdouble)), exact)
    return moved.astype(x.dtype)


def _off(x: Array, off: Off) -> Array:
    """Between -1 and 1: the RMS is 0.38 at random, 0.35 in waves."""
    if off == "in waves":
        return np.where(np.isfinite(x), np.sin(9 * np.where(np.isfinite(x), x, 0).astype(np.float64)), 0) / 2
    bits = x.astype(np.float64).view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * _MIXED
    mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIXED
    uniform = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    return np.where(x == 0, 0.0, uniform**3)  # exp(0) is 1 in every library
