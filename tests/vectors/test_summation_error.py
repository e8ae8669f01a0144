"""Errors of sums and of numbers that round alike, against what float32 and bfloat16 do."""

import ml_dtypes
import numpy as np
import pytest

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.generate.summation_error import (
    alike_in_all,
    last_rounding,
    partial_sums,
    sum_coherence,
    sum_variance,
)

U = UNIT_ROUNDOFF["float32"]


def in_order(x, y):
    """x @ y in float32, one term after the other."""
    total = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for k in range(x.shape[1]):
        total += (x[:, k, None] * y[k]).astype(np.float32)
    return total.astype(np.float64)


def terms(kind):
    """200 sums of 300 terms that float32 holds, [200, 300] and [300, 1]."""
    x = Draws(f"sums/{kind}").gauss(200, 300, bits=24)
    if kind == "rising":
        x = 0.05 * x + np.linspace(-1.0, 1.0, 300)
    if kind == "by sign":
        x = np.abs(x) * np.where(np.arange(300) < 150, 1.0, -1.0)
    return x.astype(np.float32).astype(np.float64), np.ones((300, 1))


@pytest.mark.parametrize("period", [2, 8, 64])
@pytest.mark.parametrize("lanes", [1, 2, 16, 64])
def test_a_sum_in_lanes_errs_no_more_than_predicted(period, lanes):
    """Values that alternate cancel in order, yet each lane of a vector instruction may add up one sign."""
    x = np.abs(Draws("sums/lanes").gauss(50, 1024, bits=24)) * np.where(
        np.arange(1024) % period < period / 2, 1, -1
    )
    x, y = x.astype(np.float32).astype(np.float64), np.ones((1024, 1))
    parts = [in_order(x[:, lane::lanes], y[lane::lanes]).astype(np.float32) for lane in range(lanes)]
    computed = in_order(np.concatenate(parts, axis=1).astype(np.float64), np.ones((lanes, 1)))
    predicted = np.sqrt(sum_variance(U, 1024, x**2 @ y**2, x @ y, partial_sums(x, y)))
    assert np.sqrt((((computed - x @ y) / predicted) ** 2).mean()) < 1.0


@pytest.mark.parametrize("kind", ["in disorder", "rising", "by sign"])
def test_a_sum_in_order_errs_as_predicted(kind):
    x, y = terms(kind)
    total, squares = x @ y, x**2 @ y**2
    predicted = np.sqrt(sum_variance(U, 300, squares, total, partial_sums(x, y)))
    error = np.sqrt((((in_order(x, y) - total) / predicted) ** 2).mean())
    assert 0.3 < error < 1.1
    by_ends = np.sqrt(sum_variance(U, 300, squares, total))
    assert (np.median(predicted / by_ends) > 2) == (kind != "in disorder")


def test_partial_sums_are_those_of_either_order():
    x, y = Draws("sums/partial").gauss(2, 3, 5, bits=24), Draws("sums/other").gauss(2, 5, 4, bits=24)
    products = x[..., :, :, None] * y[..., None, :, :]
    forward = (np.cumsum(products, axis=-2) ** 2).sum(axis=-2)
    backward = (np.cumsum(products[..., ::-1, :], axis=-2) ** 2).sum(axis=-2)
    np.testing.assert_allclose(partial_sums(x, y), np.maximum(forward, backward), rtol=1e-12)


def test_nearly_equal_terms_of_a_sum_count_as_equal_where_what_they_come_to_is_coarser():
    visible = np.ones((1, 1000), dtype=np.bool_)
    logits = np.linspace(0.0, 100 * U, 1000)[None]
    assert sum_coherence(logits, visible, U)[0, 0] == 1000
    assert sum_coherence(logits, visible, U / 1000)[0, 0] < 50


@pytest.mark.parametrize(
    ("numbers", "several", "largest"),
    [
        ([1 / 255] * 40, True, np.sqrt(3)),
        ([0.3, 0.3], True, np.sqrt(3)),
        ([0.5, 0.3], False, 1.0),
        ([0.9], False, 1.0),
        ([1 / 255] * 20 + [1 / 200] * 20 + [1 / 150] * 20, True, 1.0),
        ([], False, 1.0),
    ],
)
def test_weights_of_all_rows_that_round_alike(numbers, several, largest):
    weights = np.array(numbers).reshape(1, -1)
    found = alike_in_all(np.log(weights), weights > 0, UNIT_ROUNDOFF["bfloat16"])
    assert found.any == several
    assert found.largest == largest


def test_the_last_rounding_of_one_number_is_no_matter_of_chance():
    result = np.full((30, 5), 1 / 255)
    rounded = result.astype(ml_dtypes.bfloat16).astype(np.float64)
    unit = UNIT_ROUNDOFF["bfloat16"]
    predicted = np.hypot(unit / np.sqrt(3) * result, last_rounding(result, unit))
    ratio = np.abs(rounded - result) / predicted
    assert 0.9 < ratio.max() <= 1.0
    assert not last_rounding(np.linspace(1.0, 3.0, 30), unit).any()
