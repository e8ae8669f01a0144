"""What of NaN and infinity the specification leaves open: weights at masked keys, values that weigh next to nothing."""

import numpy as np

from conformance.vectors.case import Array, Golden
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import Problem, parts

LEAST = 2.0**-18
"""A weight below it may be zero in some dtype, and zero times infinity is NaN (ATT-11)."""


def in_doubt(problem: Problem) -> bool:
    """Whether a visible value that is not finite has so small a weight, in a row that is not NaN anyway."""
    names = [name for name in ("value", "past_value") if name in problem.inputs]
    if all(np.isfinite(problem.inputs[name]).all() for name in names):
        return False
    return any(_small(one) for *_, one in parts(problem))


def _small(problem: Problem) -> bool:
    a = approximate(problem)
    broken = np.any(~np.isfinite(a.value), axis=-1, keepdims=True).swapaxes(-1, -2)  # [B, H, 1, kv_len]
    seen = problem.visible & broken & ~np.isnan(a.lse)[..., None]
    return bool((seen & (a.weights < LEAST)).any())


def free_weights(problem: Problem, golden: Golden) -> Array:
    """Which weights may be anything: those of a NaN row at its masked keys (ATT-10), in the shape of `Golden.hi`."""
    free: Array = (np.isnan(golden.hi).reshape(problem.visible.shape) & ~problem.visible).reshape(
        golden.hi.shape
    )
    return free


def filled(weights: Array, golden: Golden, free: Array) -> Array:
    """Weights with NaN where they may be anything; what has another shape or dtype stays as it is."""
    if weights.shape != golden.shape or weights.dtype.kind not in "fV":
        return weights
    found = np.array(weights)
    rows = slice(None) if golden.rows is None else list(golden.rows)
    found[..., rows, :] = np.where(free, np.array(np.nan, found.dtype), found[..., rows, :])
    return found
