"""Golden gradients against differences of the golden forward operation: no formula of a gradient takes part."""

from fractions import Fraction

import numpy as np
import pytest

from conformance.names import MHA, MHA_VJP, SDPA
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.generate.oracle import golden
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.load import load_vectors

GRADIENTS = {
    case.id: case
    for case in load_vectors().cases
    if case.gradients and not case.raises and not case.seeded and case.inputs["query"].size
}
STEP = 2.0**-30
LARGEST_BIAS = 1000
AFFORDABLE = 700
"""Logits of a case that is checked here; the others differ from these in length alone."""


def _small(case):
    query, key = case.inputs["query"], case.inputs["key"]
    finite = all(np.isfinite(case.inputs[name]).all() for name in ("query", "key", "value", "grad_output"))
    # beside a large bias a step of 2^-30 would be rounded
    finite = finite and not (np.abs(case.inputs.get("attn_bias", 0)) > LARGEST_BIAS).any()
    return finite and "full-mantissa" not in case.id and query.size * max(key.shape[-2], 1) <= AFFORDABLE * 4


def _exact_sum(left, right):
    """The sum of products, without rounding; each of `left` is a pair hi + lo."""
    hi, lo = (np.asarray(x, np.float64).ravel() for x in left)
    right = np.asarray(right, np.float64).ravel()
    pairs = zip(hi, lo, right, strict=True)
    return sum(((Fraction(h) + Fraction(low)) * Fraction(r) for h, low, r in pairs), Fraction(0))


def _paired(case, inputs, grad_output, grad_lse):
    """The results of a call, each times its cotangent, summed without rounding."""
    operation = MHA if case.operation == MHA_VJP else SDPA
    problem = pose(operation, inputs, case.options, None)
    wanted = ("output",) if grad_lse is None else ("output", "lse")
    found = golden(problem, approximate(problem), wanted)[0]
    total = _exact_sum(found["output"], grad_output)
    if grad_lse is not None:
        lse = [np.reshape(part, grad_lse.shape) for part in found["lse"]]
        there = np.isfinite(lse[0])  # what an empty row is given reaches nothing
        total += _exact_sum([np.where(there, part, 0) for part in lse], np.where(there, grad_lse, 0))
    return total


@pytest.mark.turns(3)
@pytest.mark.covers(
    "GRAD-1",
    "GRAD-3",
    "GRAD-4",
    "GRAD-5",
    "GRAD-6",
    "GRAD-7",
    "GRAD-8",
    "GRAD-10",
    "GRAD-11",
    "GRAD-13",
    "GRAD-16",
)
@pytest.mark.parametrize("name", [name for name, case in GRADIENTS.items() if _small(case)])
def test_a_gradient_is_the_slope_of_the_output(name):
    case = GRADIENTS[name]
    inputs = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in case.inputs.items()}
    cotangents = inputs.pop("grad_output"), inputs.pop("grad_lse", None)
    for argument, gradient in case.expected.items():
        if not gradient.hi.size:
            continue
        direction = Draws(f"{name}:{argument}").gauss(*gradient.shape)
        moved = []
        for side in (STEP, -STEP):
            given = inputs[argument] + np.where(np.isfinite(inputs[argument]), side * direction, 0.0)
            moved.append(_paired(case, {**inputs, argument: given}, *cotangents))
        slope = (moved[0] - moved[1]) / Fraction(2 * STEP)
        expected = _exact_sum((gradient.hi, gradient.lo), direction)
        size = max(float(np.abs(gradient.hi).max()) * np.abs(direction).sum(), 2.0**-60)
        # the third derivative, times the square of the step, and the last bits of two outputs
        assert abs(slope - expected) <= size * 2.0**-44 + 2.0**-50, argument


def test_enough_cases_are_checked():
    checked = [name for name, case in GRADIENTS.items() if _small(case)]
    assert len(checked) >= 90
    assert {argument for name in checked for argument in GRADIENTS[name].expected} == {
        *("query", "key", "value", "attn_bias", "sinks"),
        *(f"{kind}_{letter}" for kind in "wb" for letter in "qkvo"),
    }
