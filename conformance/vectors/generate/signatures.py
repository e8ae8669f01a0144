"""Directions in which a systematic error moves an output: rule 3 of spec/numerics.md looks along them."""

from collections.abc import Mapping

import flint
import numpy as np

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.vectors.case import Array, Signature
from conformance.vectors.generate.ball_rounding import NeverDecidedError, UndecidedError, split
from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.normal_form import Problem

_HALF, _SCALE = {"eager": 0.5, "fused": 0.5}, {"eager": 3.0, "fused": 0.5}
LIMITS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "gain": {"float32": {"eager": 2.0, "fused": 2.0}, "float16": _HALF, "bfloat16": _HALF},
    "scale": {"float16": _SCALE, "bfloat16": _SCALE},
}
"""Signature -> dtype -> policy -> how far along it an answer may lie, in units of the dtype's u."""

FIRST_BITS, LAST_BITS = 192, 12288


def signatures(problem: Problem, asked: Mapping[str, tuple[str, ...]], exact: Array) -> dict[str, Signature]:
    """The signatures that a draft asks of its output, each with the dtypes that it is asked at.

    Raises:
        ValueError: a direction has no formula here, or cannot be decided.
    """
    found = {}
    for name, dtypes in asked.items():
        limits = {
            dtype: {policy: n * UNIT_ROUNDOFF[dtype] for policy, n in LIMITS[name][dtype].items()}
            for dtype in dtypes
        }
        found[name] = Signature(exact if name == "gain" else by_scale(problem).reshape(exact.shape), limits)
    return found


def by_scale(problem: Problem) -> Array:
    """The derivative of the output by the logarithm of the scale, rounded once. [B, H, rows, d_v]."""
    if problem.layer or problem.softcap is not None or problem.has_bias or "sinks" in problem.inputs:
        raise ValueError("the derivative by the scale is computed for plain attention alone")
    bits = FIRST_BITS
    while bits <= LAST_BITS:
        flint.ctx.prec = bits
        try:
            return _by_scale(problem)
        except UndecidedError:
            bits *= 2
    raise NeverDecidedError(f"a derivative is not decided at {LAST_BITS} bits")


def _by_scale(problem: Problem) -> Array:
    found = np.zeros((*problem.visible.shape[:3], problem.d_v))
    scale = flint.arb(problem.d_k).rsqrt() if problem.scale is None else flint.arb(problem.scale)
    for b, h, i in np.ndindex(*problem.visible.shape[:3]):
        query = Exact.of(problem.inputs["query"][b, h, i : i + 1])
        raw = query @ Exact.of(problem.inputs["key"][b, h // problem.group]).transposed()
        seen = np.flatnonzero(problem.visible[b, h, i])
        if not seen.size:
            continue
        top = max(seen, key=lambda j: raw.integer(0, int(j)) * (1 if problem.multiplier > 0 else -1))
        below = [scale * raw.difference(0, int(j), int(top)) for j in seen]  # logits less the largest one
        powers = [x.exp() for x in below]
        total = sum(powers, flint.arb(0))
        mean = sum((p * x for p, x in zip(powers, below, strict=True)), flint.arb(0)) / total
        for d in range(problem.d_v):
            column = problem.inputs["value"][b, h // problem.group, seen, d]
            terms = (p * (x - mean) * float(v) for p, x, v in zip(powers, below, column, strict=True))
            found[b, h, i, d] = split(sum(terms, flint.arb(0)) / total)[0]
    return found
