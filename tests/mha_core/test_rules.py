"""Rules that random numbers would not show: non-finite numbers, empty rows, precision, what is returned."""

import math

import numpy as np
import pytest
from array_libraries import dtypes_of, library

import mha_core
from mha_core import AttentionResult, multi_head_attention, scaled_dot_product_attention

pytestmark = pytest.mark.turns(3)

LIBRARIES = ("numpy", "array-api-strict", "torch", "jax")
CASES = [(name, dtype) for name in LIBRARIES for dtype in dtypes_of(name)]
RNG = np.random.default_rng(11)
QUERY, KEY, VALUE = (RNG.integers(-8, 9, s) / 4 for s in ((4, 3, 2), (2, 5, 2), (2, 5, 3)))
INF, NAN = math.inf, math.nan


def attend(name, dtype, query=QUERY, key=KEY, value=VALUE, **options):
    """Output, weights and lse in NumPy."""
    lib = library(name)
    arrays = {
        n: lib.array(x, dtype if x.dtype.kind == "f" else None)
        for n, x in options.items()
        if isinstance(x, np.ndarray)
    }
    with np.errstate(all="ignore"):
        result = scaled_dot_product_attention(
            lib.array(query, dtype),
            lib.array(key, dtype),
            lib.array(value, dtype),
            **{**options, **arrays},
            return_weights=True,
            return_lse=True,
        )
    return tuple(lib.numpy(x).astype(np.float64) for x in (result.output, result.weights, result.lse))


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    return request.param


@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_masked_keys_and_values_give_nothing(case, number):
    mask = np.ones((3, 5), bool)
    mask[:, 2] = False
    key, value = KEY.copy(), VALUE.copy()
    key[:, 2], value[:, 2] = number, number
    for got, wanted in zip(
        attend(*case, key=key, value=value, mask=mask), attend(*case, mask=mask), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("number", [NAN, INF, -INF])
@pytest.mark.parametrize("option", ["kv_lengths", "is_causal", "window", "attn_bias"])
def test_whatever_hides_a_value_hides_its_nan(case, option, number):
    options = {
        "kv_lengths": {"kv_lengths": np.asarray(3)},
        "is_causal": {"is_causal": True, "q_offset": 0},
        "window": {"window": (4, 0), "q_offset": 0},
        "attn_bias": {"attn_bias": np.where(np.arange(5) < 3, 0.0, -INF).reshape(1, 5)},
    }[option]
    key, value = KEY.copy(), VALUE.copy()
    key[:, 3:], value[:, 3:] = number, number
    wanted = attend(*case, **options)
    for got, want in zip(attend(*case, key=key, value=value, **options), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("numbers", [[NAN], [INF], [-INF], [INF, -INF], [INF, NAN]])
@pytest.mark.parametrize("masked", [False, True])
def test_a_visible_value_reaches_its_column_of_the_rows_that_see_it(case, numbers, masked):
    mask = np.ones((4, 3, 5), bool)
    if masked:
        mask[:, 1] = [True, False, False, True, True]
    value = VALUE.copy()
    value[1, 1 : 1 + len(numbers), 2] = numbers
    wanted, weights, lse = attend(*case, mask=mask)
    result = NAN if len(numbers) > 1 else numbers[0]
    wanted[2:, :, 2] = np.where(mask[2:, :, 1], result, wanted[2:, :, 2])
    got = attend(*case, value=value, mask=mask) if masked else attend(*case, value=value)
    np.testing.assert_array_equal(got[0], wanted)
    np.testing.assert_array_equal(got[1], weights)
    np.testing.assert_array_equal(got[2], lse)


@pytest.mark.parametrize("number", [NAN, INF])
def test_a_visible_nan_or_inf_logit_makes_its_row_nan_and_no_other(case, number):
    bias = np.zeros((4, 3, 5))
    bias[1, 2, 3] = number
    wanted, got = attend(*case), attend(*case, attn_bias=bias)
    for x, want in zip(got, wanted, strict=True):
        assert np.isnan(x[1, 2]).all()
        want[1, 2] = NAN
        np.testing.assert_array_equal(x, want)


def test_a_masked_nan_logit_is_gone(case):
    bias = np.zeros((3, 5))
    bias[1, 2] = NAN
    mask = ~np.isnan(bias)
    for got, want in zip(attend(*case, attn_bias=bias, mask=mask), attend(*case, mask=mask), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("sink", [None, 1.0, NAN, INF, -INF])
def test_an_empty_row_is_zero_whatever_the_sink(case, sink):
    mask = np.ones((3, 5), bool)
    mask[1] = False
    options = {} if sink is None else {"sinks": np.full(4, sink)}
    output, weights, lse = attend(*case, mask=mask, **options)
    assert (output[:, 1] == 0).all()
    assert (weights[:, 1] == 0).all()
    np.testing.assert_array_equal(lse[:, 1], -INF if sink is None else sink)
    if sink in (NAN, INF):
        assert np.isnan(output[:, 0]).all()
        assert np.isnan(lse[:, 0]).all()


def test_a_minus_inf_logit_that_arose_has_no_weight(case):
    query, key = np.ones((1, 1, 1)), np.asarray([[[-INF], [1.0]]])
    output, weights, _ = attend(*case, query=query, key=key, value=np.asarray([[[5.0], [7.0]]]))
    np.testing.assert_array_equal(weights, [[[0, 1]]])
    np.testing.assert_array_equal(output, [[[7]]])


def test_a_row_of_minus_inf_logits_alone_is_not_empty(case):
    query, key = np.ones((1, 1, 1)), np.full((1, 2, 1), -INF)
    output, weights, lse = attend(*case, query=query, key=key, value=np.ones((1, 2, 1)))
    assert np.isnan(output).all()
    assert np.isnan(weights).all()
    assert np.isnan(lse).all()
    output, _, lse = attend(*case, query=query, key=key, value=np.ones((1, 2, 1)), sinks=np.asarray([2.0]))
    np.testing.assert_array_equal(output, [[[0]]])
    np.testing.assert_array_equal(lse, [[2]])


@pytest.mark.parametrize("shape", [(0, 4, 3, 5), (2, 4, 0, 5), (2, 4, 3, 0)])
def test_sizes_of_zero(case, shape):
    batch, heads, q_len, kv_len = shape
    arrays = [np.zeros(s) for s in ((batch, heads, q_len, 2), (batch, 2, kv_len, 2), (batch, 2, kv_len, 6))]
    for options in ({}, {"sinks": np.zeros(4), "is_causal": True, "q_offset": 1}):
        output, weights, lse = attend(*case, *arrays, **options)
        np.testing.assert_array_equal(output, np.zeros((batch, heads, q_len, 6)))
        np.testing.assert_array_equal(weights, np.zeros(shape))
        np.testing.assert_array_equal(lse, np.full(shape[:3], 0.0 if kv_len or options else -INF))


@pytest.mark.parametrize("name", LIBRARIES)
def test_logits_of_any_size(name):
    query, key = np.full((1, 1, 1), 1e15), np.asarray([[[1e15], [1e15], [-1e15]]])
    value = np.asarray([[[1.0], [2.0], [4.0]]])
    output, weights, lse = attend(name, "float32", query, key, value)
    np.testing.assert_array_equal(weights, [[[0.5, 0.5, 0]]])
    np.testing.assert_array_equal(output, [[[1.5]]])
    np.testing.assert_allclose(lse, [[1e30]], rtol=1e-6)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_float16_product_beyond_its_range(name):
    query, key = np.full((1, 1, 64), 40.0), np.full((1, 2, 64), 40.0)  # a raw product of 102,400
    key[0, 1, 0] = 39.9375
    _, weights, lse = attend(name, "float16", query, key, np.ones((1, 2, 1)))
    difference = 40 * (40 - 39.9375) / 8
    np.testing.assert_allclose(weights[0, 0, 0], 1 / (1 + math.exp(-difference)), rtol=1e-3)
    np.testing.assert_allclose(lse, 12800 + math.log1p(math.exp(-difference)), rtol=1e-7)


@pytest.mark.parametrize("name", LIBRARIES)
def test_values_near_the_largest_number(name):
    largest = 3e38
    output, _, _ = attend(name, "float32", value=np.full((2, 5, 3), largest))
    np.testing.assert_allclose(output, largest, rtol=1e-6)


@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch"])
def test_a_finite_bias_of_a_wider_dtype_stays_finite(name):
    lib = library(name)
    bias = np.asarray([[-1e300, -INF, -INF, -INF, -INF]])
    output = scaled_dot_product_attention(
        *(lib.array(x, "float32") for x in (QUERY, KEY, VALUE)), attn_bias=lib.array(bias, "float64")
    )
    np.testing.assert_array_equal(lib.numpy(output)[:2], np.broadcast_to(VALUE[0, 0], (2, 3, 3)))


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_layer_rounds_once(name):
    lib = library(name)
    rng = np.random.default_rng(3)
    shapes = {"query": (3, 16), "key": (5, 16), "value": (5, 16)}
    shapes |= {"w_q": (2, 16, 8), "w_k": (2, 16, 8), "w_v": (2, 16, 8), "w_o": (2, 8, 4)}
    for dtype in set(dtypes_of(name)) & {"float16", "bfloat16"}:
        arrays = {n: lib.array(rng.standard_normal(s), dtype) for n, s in shapes.items()}
        wide = {n: library("numpy").array(lib.numpy(x), "float64") for n, x in arrays.items()}
        exact = multi_head_attention(**wide)
        got = lib.numpy(multi_head_attention(**arrays))
        rounded_once = np.asarray(library("numpy").array(exact, dtype), np.float64)
        assert (got == rounded_once).mean() > 0.9  # a tie may fall the other way


def test_b_o_is_added_to_an_empty_row():
    rng = np.random.default_rng(4)
    shapes = {"query": (3, 4), "key": (5, 4), "value": (5, 4)}
    shapes |= {
        "w_q": (2, 4, 3),
        "w_k": (2, 4, 3),
        "w_v": (2, 4, 3),
        "w_o": (2, 3, 4),
        "b_o": (4,),
        "b_v": (2, 3),
    }
    arrays = {n: rng.standard_normal(s) for n, s in shapes.items()}
    output = multi_head_attention(**arrays, mask=np.zeros((3, 5), bool))
    np.testing.assert_array_equal(output, np.broadcast_to(arrays["b_o"], (3, 4)))


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_what_is_returned(weights, lse, past):
    options = {"past_key": KEY, "past_value": VALUE} if past else {}
    result = scaled_dot_product_attention(
        QUERY, KEY, VALUE, return_weights=weights, return_lse=lse, **options
    )
    assert isinstance(result, AttentionResult) == (weights or lse or past)
    if isinstance(result, AttentionResult):
        assert result._fields == ("output", "weights", "lse", "present_key", "present_value")
        given = tuple(x is not None for x in result)
        assert given == (True, weights, lse, past, past)


def test_asking_for_more_changes_nothing():
    plain = scaled_dot_product_attention(QUERY, KEY, VALUE, sinks=np.ones(4))
    full = scaled_dot_product_attention(
        QUERY, KEY, VALUE, sinks=np.ones(4), return_weights=True, return_lse=True
    )
    np.testing.assert_allclose(full.output, plain, rtol=1e-14)


def test_present_is_past_then_new_and_ignores_the_lengths():
    key, value = KEY.copy(), VALUE.copy()
    key[:, 4], value[:, 4] = NAN, INF
    result = scaled_dot_product_attention(
        QUERY, key, value, past_key=KEY[:, :2], past_value=VALUE[:, :2], kv_lengths=np.asarray(6)
    )
    np.testing.assert_array_equal(result.present_key, np.concatenate([KEY[:, :2], key], axis=1))
    np.testing.assert_array_equal(result.present_value, np.concatenate([VALUE[:, :2], value], axis=1))
    assert np.isfinite(result.output).all()


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_dtypes_of_results(name, dtype):
    lib = library(name)
    arrays = [lib.array(x, dtype) for x in (QUERY, KEY, VALUE)]
    result = scaled_dot_product_attention(
        *arrays, past_key=arrays[1], past_value=arrays[2], return_weights=True, return_lse=True
    )
    assert {
        result.output.dtype,
        result.weights.dtype,
        result.present_key.dtype,
        result.present_value.dtype,
    } == {arrays[0].dtype}
    assert str(result.lse.dtype).endswith("float64" if dtype == "float64" else "float32")


def test_the_names_that_the_package_offers():
    for name in mha_core.__all__:
        assert getattr(mha_core, name) is not None
    assert mha_core.features == mha_core.FEATURES
    with pytest.raises(AttributeError, match="no attribute 'torch'"):
        mha_core.torch  # noqa: B018
