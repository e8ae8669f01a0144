"""The worked example of two tokens: what texts print is proven of the exact values."""

import numpy as np
import pytest
from mpmath import iv, mp

from conformance.vectors.generate.cases.example import PRINTED_GAIN
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases if case.chapter == "example"}
HALF_DIGIT = "0.005"


@pytest.fixture(autouse=True)
def _precision():
    before, iv.dps = iv.dps, 40
    yield
    iv.dps = before


def two(exponent):
    """Softmax over an exponent and zero, as an interval."""
    power = iv.exp(exponent)
    return power / (1 + power)


def within(value, printed):
    """Whether every number of the interval rounds to what is printed, to two decimals."""
    return bool(abs(value - iv.mpf(printed)) < iv.mpf(HALF_DIGIT))


def holds(value, hi, lo):
    """Whether hi + lo lies in the interval, widened by what the pair leaves out."""
    return bool(abs(value - (iv.mpf(float(hi)) + iv.mpf(float(lo)))) <= iv.mpf(2) ** -100)


def scaled(gain):
    """gain^2 / sqrt(2): the logit of a token with itself, where that with the other is zero."""
    return iv.mpf(gain) ** 2 / iv.sqrt(iv.mpf(2))


def test_the_first_head_prints_as_67_and_33():
    large = two(scaled(1))
    assert within(large, "0.67")
    assert within(1 - large, "0.33")
    assert mp.mpf("0.669761549") < large.a.mid < mp.mpf("0.66976155")


def test_the_second_head_prints_as_60_and_40():
    large = two(scaled(97 / 128))
    assert within(large, "0.60")
    assert within(1 - large, "0.40")
    assert not within(two(scaled(1)), "0.60")  # the text's own rule gives the first head's numbers


def test_the_gain_is_exact_in_every_dtype():
    assert PRINTED_GAIN == 97 / 128
    case = CASES["example/printed-concatenation"]
    assert case.dtypes == ("float64", "float32", "float16", "bfloat16")
    for name in ("w_q", "w_k"):
        for dtype in case.dtypes:
            w = case.operands(dtype)[name].astype(np.float64)
            assert w.tolist() == [
                [[1, 0], [0, 1], [0, 0], [0, 0]],
                [[0, 0], [0, 0], [97 / 128, 0], [0, 97 / 128]],
            ]
    # another gain of eight bits beside it still prints the same, the exact one of ln 1.5 lies between
    exact = mp.sqrt(mp.log(mp.mpf(3) / 2) * mp.sqrt(2))
    assert abs(exact - mp.mpf(97) / 128) < mp.mpf(1) / 256


@pytest.mark.parametrize(
    ("name", "gain"),
    [
        ("example/heads-as-computed", 1.0),
        ("example/printed-concatenation", PRINTED_GAIN),
        ("example/output-projection", PRINTED_GAIN),
    ],
)
def test_goldens_lie_in_the_intervals(name, gain):
    case = CASES[name]
    weights, output = case.expected["weights"], case.expected["output"]
    assert weights.shape == (2, 2, 2)
    large = [two(scaled(1)), two(scaled(gain))]
    z = [[None] * 4, [None] * 4]  # [query, head and column]
    for h in range(2):
        for i in range(2):
            for j in range(2):
                share = large[h] if i == j else 1 - large[h]
                assert holds(share, weights.hi[h, i, j], weights.lo[h, i, j])
                z[i][2 * h + j] = share  # values are the unit vectors
    w_o = case.inputs["w_o"].astype(np.float64).reshape(4, 4)
    for i in range(2):
        for o in range(4):
            total = sum((z[i][d] * iv.mpf(float(w_o[d, o])) for d in range(4)), iv.mpf(0))
            assert holds(total, output.hi[i, o], output.lo[i, o])


@pytest.mark.parametrize(
    ("name", "second"),
    [("example/heads-as-computed", ("0.67", "0.33")), ("example/printed-concatenation", ("0.60", "0.40"))],
)
def test_the_printed_concatenation(name, second):
    output = CASES[name].expected["output"]
    printed = [["0.67", "0.33", *second], ["0.33", "0.67", *second[::-1]]]
    for i, row in enumerate(printed):
        for o, text in enumerate(row):
            assert within(iv.mpf(float(output.hi[i, o])) + iv.mpf(float(output.lo[i, o])), text)
            assert f"{output.hi[i, o]:.2f}" == text


def test_the_output_projection_is_neither_diagonal_nor_symmetric():
    w = CASES["example/output-projection"].inputs["w_o"].astype(np.float64).reshape(4, 4)
    assert not np.array_equal(w, w.T)
    assert np.linalg.matrix_rank(w) == 4
    assert np.count_nonzero(w - np.diag(np.diag(w))) >= 10


def test_layers_of_the_usual_sizes_are_there():
    sizes = {
        (c.inputs["w_q"].shape[1], c.inputs["w_q"].shape[0], c.inputs["w_q"].shape[2]) for c in CASES.values()
    }
    assert {(512, 8, 64), (256, 4, 64)} <= sizes
