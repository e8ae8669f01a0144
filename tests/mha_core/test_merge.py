"""Parts over disjoint keys, merged, are one pass over all keys."""

import math

import numpy as np
import pytest
from array_libraries import TOLERANCES, call, dtypes_of, library

from mha_core import merge_attention, scaled_dot_product_attention

RNG = np.random.default_rng(7)
QUERY, KEY = RNG.standard_normal((2, 4, 3, 5)), RNG.standard_normal((2, 2, 9, 5))
VALUE, SINKS = RNG.standard_normal((2, 2, 9, 3)), RNG.standard_normal(4)
MASK = RNG.random((2, 4, 3, 9)) < 0.6
MASK[0, 1, 2] = False  # an empty row
MASK[0, 2, 1, :4] = False  # a row that is empty in the first part
SPLITS = [(0, 4), (4, 5), (5, 5), (5, 9)]  # one of them without a key


def merged(lib, dtype, sinks, value=VALUE, splits=SPLITS):
    parts = [
        scaled_dot_product_attention(
            lib.array(QUERY, dtype),
            lib.array(KEY[..., a:b, :], dtype),
            lib.array(value[..., a:b, :], dtype),
            mask=lib.array(MASK[..., a:b]),
            return_lse=True,
        )
        for a, b in splits
    ]
    sinks = None if sinks is None else lib.array(sinks, dtype)
    return merge_attention([p.output for p in parts], [p.lse for p in parts], sinks)


def one_pass(lib, dtype, sinks, value=VALUE):
    arrays = {"query": QUERY, "key": KEY, "value": value, "mask": MASK}
    arrays |= {} if sinks is None else {"sinks": sinks}
    return call(scaled_dot_product_attention, lib, arrays, {"return_lse": True}, dtype)


@pytest.mark.turns(3)
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["plain", "sinks"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in ("numpy", "array-api-strict", "torch", "jax") for d in dtypes_of(n)],
)
def test_merged_parts_are_one_pass(name, dtype, sinks):
    lib = library(name)
    with np.errstate(all="ignore"):
        got, wanted = merged(lib, dtype, sinks), one_pass(lib, dtype, sinks)
    loose = {
        "rtol": 4 * TOLERANCES[dtype]["rtol"],
        "atol": 4 * TOLERANCES[dtype]["rtol"],
    }  # parts are rounded
    np.testing.assert_allclose(lib.numpy(got.output), wanted["output"], **loose)
    np.testing.assert_allclose(lib.numpy(got.lse), wanted["lse"], rtol=1e-5, atol=1e-5)
    assert lib.numpy(got.output).dtype == wanted["output"].dtype
    assert lib.numpy(got.lse).dtype == wanted["lse"].dtype


def test_a_merge_can_be_merged():
    lib = library("numpy")
    left, right = (
        merged(lib, "float64", None, splits=SPLITS[:2]),
        merged(lib, "float64", None, splits=SPLITS[2:]),
    )
    both = merge_attention([left.output, right.output], [left.lse, right.lse])
    np.testing.assert_allclose(both.output, merged(lib, "float64", None).output, rtol=1e-13, atol=1e-15)


def test_one_part_is_itself():
    lib = library("numpy")
    alone, wanted = merged(lib, "float64", None, splits=[(0, 9)]), one_pass(lib, "float64", None)
    np.testing.assert_array_equal(alone.output, wanted["output"])
    np.testing.assert_array_equal(alone.lse, wanted["lse"])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_survive(number):
    value = VALUE.copy()
    value[:, 0, 2, 1] = number
    lib = library("numpy")
    got, wanted = merged(lib, "float64", None, value), one_pass(lib, "float64", None, value)
    np.testing.assert_allclose(got.output, wanted["output"], rtol=1e-12, atol=1e-14)


def test_a_part_of_no_weight_still_gives_its_inf():
    output, lse = np.asarray([[[math.inf, 1.0]]]), np.asarray([[-2000.0]])
    got = merge_attention([output, np.ones((1, 1, 2))], [lse, np.zeros((1, 1))])
    np.testing.assert_array_equal(got.output, [[[math.inf, 1.0]]])


@pytest.mark.parametrize("sink", [0.0, -3.7, math.nan, math.inf, -math.inf])
def test_rows_that_are_empty_in_all_parts(sink):
    empty = np.full((1, 2), -math.inf)
    got = merge_attention([np.zeros((1, 2, 3))] * 2, [empty, empty], np.asarray([sink]))
    np.testing.assert_array_equal(got.output, np.zeros((1, 2, 3)))
    np.testing.assert_array_equal(got.lse, np.full((1, 2), sink))


def test_a_part_of_minus_inf_logits_alone_gives_nothing():
    outputs = [np.full((1, 1, 2), math.nan), np.ones((1, 1, 2))]
    got = merge_attention(outputs, [np.full((1, 1), -math.inf), np.zeros((1, 1))])
    np.testing.assert_array_equal(got.output, outputs[1])
