import math

import numpy as np
import pytest
from document_layers import attend_heads, concatenated, draw, layer, stack

from conformance.vectors.load import load_vectors

X = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]])
HALVES = stack(np.eye(4)[:, :2], np.eye(4)[:, 2:])
EXACT_GAIN = math.sqrt(math.sqrt(2) * math.log(1.5))


def heads_with_gain(gain):
    w_qk = HALVES * np.array([1.0, gain])[:, None, None]
    return attend_heads(X, w_qk, w_qk, HALVES)


@pytest.fixture(scope="module")
def goldens():
    return {case.id: case.expected for case in load_vectors().cases if case.id.startswith("example/")}


def test_setup():
    assert X.shape == (2, 4)
    assert 4 / 2 == HALVES.shape[-1] == 2
    np.testing.assert_array_equal(X @ HALVES, [np.eye(2)] * 2)  # both halves of X are the identity


def test_halves_are_a_special_projection():
    generic = draw(0, 2, 4, 2)[0]
    assert abs(X @ generic - X.reshape(2, 2, 2).swapaxes(0, 1)).max() > 0.1
    np.testing.assert_array_equal(X @ HALVES, X.reshape(2, 2, 2).swapaxes(0, 1))


def test_scores_and_scaling():
    q = X @ HALVES[0]
    np.testing.assert_array_equal(q @ q.T, np.eye(2))
    assert round(math.sqrt(2), 3) == 1.414
    np.testing.assert_array_equal(np.round(q @ q.T / math.sqrt(2), 3), [[0.707, 0], [0, 0.707]])


def test_weights_of_head_1():
    weights = heads_with_gain(1.0).weights[0]
    np.testing.assert_allclose(weights[0], [0.66976154932665, 0.33023845067335], rtol=1e-13)
    np.testing.assert_array_equal(np.round(weights, 2), [[0.67, 0.33], [0.33, 0.67]])


def test_output_of_head_1():
    result = heads_with_gain(1.0)
    np.testing.assert_array_equal(np.round(result.output[0], 2), [[0.67, 0.33], [0.33, 0.67]])
    np.testing.assert_array_equal(result.output[0], result.weights[0])  # V is the identity


def test_output_of_head_2_is_assumed():
    printed = np.array([[0.60, 0.40], [0.40, 0.60]])
    by_the_rule = heads_with_gain(1.0).output[1]
    assert abs(by_the_rule - printed).max() == pytest.approx(0.06976154932665)
    assert pytest.approx(0.7572412131914369, rel=1e-15) == EXACT_GAIN
    np.testing.assert_allclose(heads_with_gain(EXACT_GAIN).output[1], printed, rtol=1e-14)
    assert abs(heads_with_gain(97 / 128).output[1] - printed).max() <= 0.005  # an exact number, same digits


def test_heads_of_the_example_differ_only_by_the_assumption():
    same, assumed = heads_with_gain(1.0), heads_with_gain(97 / 128)
    np.testing.assert_array_equal(same.weights[0], same.weights[1])
    assert abs(assumed.weights[0] - assumed.weights[1]).max() > 0.06


def test_concatenation():
    z = concatenated(heads_with_gain(97 / 128).output)
    assert z.shape == (2, 4)
    np.testing.assert_array_equal(np.round(z, 2), [[0.67, 0.33, 0.60, 0.40], [0.33, 0.67, 0.40, 0.60]])


def test_output_projection_mixes(goldens):
    w_o = draw(1, 2, 4, 2)[3]
    w_qk = HALVES * np.array([1.0, 97 / 128])[:, None, None]
    z = concatenated(heads_with_gain(97 / 128).output)
    np.testing.assert_allclose(layer(X, w_qk, w_qk, HALVES, w_o), z @ w_o.reshape(4, 4), rtol=1e-12)
    mixed, plain = (
        goldens[f"example/{name}"]["output"].hi for name in ("output-projection", "printed-concatenation")
    )
    np.testing.assert_allclose(plain, z, rtol=1e-14)
    assert abs(mixed - plain).max() > 0.1


def test_goldens_print_as_the_text_does(goldens):
    weights = goldens["example/printed-concatenation"]["weights"].hi
    printed = [[[0.67, 0.33], [0.33, 0.67]], [[0.60, 0.40], [0.40, 0.60]]]
    assert abs(weights - printed).max() <= 0.005
    np.testing.assert_allclose(goldens["example/heads-as-computed"]["weights"].hi[1], weights[0], rtol=1e-15)
