"""What of NaN and infinity the specification leaves open: visible values that weigh next to nothing."""

import numpy as np

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
