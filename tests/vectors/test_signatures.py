"""The directions of rule 3: what they are derivatives of, and that what the filter measures is that error."""

import numpy as np
import pytest

from conformance.judging.measure import matched_filter
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.generate.signatures import by_scale
from conformance.vectors.load import load_vectors

SETS = {
    case.id: case
    for case in load_vectors().cases
    if any(golden.signatures for golden in case.expected.values())
}


def output(case, scale):
    """In float64: enough for a difference of a millionth."""
    return approximate(pose(case.operation, case.inputs, {**case.options, "scale": scale}, None)).output


def test_the_sets_are_there():
    assert set(SETS) == {"numerics/gauss", "numerics/v-offset", "numerics/dk7"}
    names = {name for case in SETS.values() for name in case.expected["output"].signatures}
    assert names == {"gain", "scale"}


@pytest.mark.parametrize("name", SETS)
def test_a_direction_is_a_derivative(name):
    case = SETS[name]
    golden = case.expected["output"]
    exact = 1 / np.sqrt(case.inputs["query"].shape[-1])
    step = 1e-6
    slope = (output(case, exact * (1 + step)) - output(case, exact * (1 - step))) / (2 * step)
    by_signature = {"gain": golden.hi, "scale": slope.reshape(golden.hi.shape)}
    for signature, held in golden.signatures.items():
        assert np.allclose(held.direction, by_signature[signature], rtol=1e-6, atol=1e-8)
    assert np.abs(slope).max() > 0.1


@pytest.mark.parametrize("name", SETS)
@pytest.mark.covers("NUM-7")
def test_the_filter_measures_the_error_of_a_scale_or_gain(name):
    case = SETS[name]
    golden = case.expected["output"]
    bound = golden.bounds["float32"]["eager"]
    exact = 1 / np.sqrt(case.inputs["query"].shape[-1])
    for signature, held in golden.signatures.items():
        for size in (1e-5, -3e-6):
            wrong = (
                golden.hi * (1 + size)
                if signature == "gain"
                else output(case, exact * (1 + size)).reshape(golden.hi.shape)
            )
            assert matched_filter(wrong, golden, held.direction, bound) == pytest.approx(size, rel=1e-3)


def test_what_has_no_formula_is_refused():
    arrays = {name: np.ones((1, 1, 2, 2)) for name in ("query", "key", "value")}
    with pytest.raises(ValueError, match="plain attention alone"):
        by_scale(pose("scaled_dot_product_attention", arrays, {"softcap": 1.0}, None))


def test_a_row_of_equal_logits_does_not_move():
    arrays = {name: np.ones((1, 1, 2, 2)) for name in ("query", "key", "value")}
    assert not by_scale(pose("scaled_dot_product_attention", arrays, {"scale": -2.0}, None)).any()
