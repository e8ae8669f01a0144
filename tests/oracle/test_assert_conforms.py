"""assert_conforms and expected: what is right passes, what is wrong is told, what is asked wrongly is refused."""

import re

import ml_dtypes
import numpy as np
import pytest
from judged_calls import attention, operands

import conformance
from conformance import assert_conforms, expected
from conformance.dtypes import NUMPY_DTYPES
from conformance.names import MHA, MHA_VJP, SDPA_VJP

pytestmark = pytest.mark.turns(3, whole=True)

DTYPES = ("float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_right_answers_pass(dtype):
    given = operands(f"assert/{dtype}", dtype=dtype, q_len=20, kv_len=33, d_k=16)
    judgement = assert_conforms(attention(**given), **given, policy="fused")
    assert judgement.verdict == "pass"
    assert 0 < judgement.error_over_bound < 1
    assert (judgement.rows, judgement.results) == (tuple(range(20)), ("output",))


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_answers_fail_with_all_that_is_known(dtype):
    given = operands(f"assert/{dtype}", dtype=dtype)
    with pytest.raises(AssertionError) as failed:
        assert_conforms(attention(**given, scale=0.25), **given)
    lines = str(failed.value).splitlines()
    assert re.match(
        r"output\[\d, \d, \d, \d\] is \S+, wanted \S+ \+- \S+: \S+ times what is allowed \(NUM-1\)", lines[0]
    )
    assert [line.split()[0] for line in lines[1:6]] == ["call", "policy", "got", "expected", "allowed"]
    assert f"query {dtype} (2, 3, 5, 4)" in lines[1]
    assert any("scale" in line and "(ATT-" in line for line in lines if line.startswith("  likely"))


def test_shape_dtype_and_nan_come_first():
    given = operands("assert/broken")
    right = attention(**given)
    with pytest.raises(
        AssertionError, match=re.escape("output has shape (1, 3, 5, 4), wanted (2, 3, 5, 4) (SHAPE-2)")
    ):
        assert_conforms(right[:1] * np.nan, **given)
    with pytest.raises(AssertionError) as failed:
        assert_conforms(right[:1], **given)
    assert "likely" not in str(failed.value)
    with pytest.raises(AssertionError, match=re.escape("output has dtype float64, wanted float32 (DTYPE-1)")):
        assert_conforms(right * np.float64(np.nan), **given)
    right[1, 0, 2, 3] = np.nan
    with pytest.raises(AssertionError, match=re.escape("output[1, 0, 2, 3] is nan, wanted")):
        assert_conforms(right, **given)
    with pytest.raises(AssertionError, match="returned None, wanted an array"):
        assert_conforms(None, **given)
    with pytest.raises(AssertionError, match="output is a list, whose dtype is unknown: give an array"):
        assert_conforms(right.tolist(), **given)
    with pytest.raises(AssertionError, match="lse is missing"):
        assert_conforms(right, **given, return_lse=True)
    with pytest.raises(AssertionError, match="weights was returned but not asked for"):
        assert_conforms({"output": right, "weights": right}, **given)


def test_a_part_of_a_large_call_tells_its_mistake():
    given = operands("assert/large", q_len=192, kv_len=256, d_k=64)
    with pytest.raises(AssertionError, match=r"likely    in batch entry \d, head \d.*scale-left-out"):
        assert_conforms(attention(**given, scale=1.0), **given)


def test_where_a_large_call_is_wrong_is_said_in_words():
    given = operands("assert/large", q_len=192, kv_len=256, d_k=64)
    got = attention(**given)
    got[1, :, 100:, :] *= 2
    with pytest.raises(AssertionError) as failed:
        assert_conforms(got, **given)
    assert "wrong only in batch entry 1" in str(failed.value)
    assert "wrong only in query rows from 100 on" in str(failed.value)


@pytest.mark.parametrize(
    ("error", "words", "changed"),
    [
        (
            ValueError,
            r"key has shape \(2, 3, 7, 9\) but the width of query, 4, is wanted \(SHAPE-5\)",
            {"key": np.zeros((2, 3, 7, 9), np.float32)},
        ),
        (
            TypeError,
            "query is float32, key is float64, value is float32, but one dtype .*DTYPE-2",
            {"key": np.zeros((2, 3, 7, 4))},
        ),
        (
            TypeError,
            "query has dtype int64 but operands need one of float64",
            {"query": np.zeros((2, 3, 5, 4), int)},
        ),
        (TypeError, "value is a str but needs an array", {"value": "abc"}),
        (TypeError, "mask is int64 but bool is wanted .DTYPE-4", {"mask": np.ones((5, 7), int)}),
        (TypeError, "has no option 'maks'; did you mean 'mask'", {"maks": None}),
        (TypeError, "has no option 'w_q'", {"w_q": None}),
        (ValueError, "is_causal with 5 queries and 7 keys, .*: give q_offset .MASK-7", {"is_causal": True}),
        (ValueError, r"window=3 but \(left, right\) is wanted.*SHAPE-10", {"window": 3}),
        (
            ValueError,
            "policy='egaer' is not one of eager, fused, .*; did you mean 'eager'",
            {"policy": "egaer"},
        ),
        (ValueError, "operation='attention' is not one of scaled_dot", {"operation": "attention"}),
        (ValueError, "needs grad_output .GRAD-14", {"operation": SDPA_VJP}),
        (ValueError, "needs w_q, w_k, w_v, w_o .PROJ-6", {"operation": MHA}),
        (ValueError, "grad_output is given but", {"grad_output": np.zeros((2, 3, 5, 4), np.float32)}),
        (ValueError, "has the query rows 0 to 4", {"rows": [5]}),
        (ValueError, "rows=0 but at least 1", {"rows": 0}),
        (ValueError, "an int, a list of query rows, or None", {"rows": "all"}),
        (ValueError, "rows is empty: give a list of rows, or None", {"rows": []}),
        (TypeError, "a boolean one is `mask`, a float one is `attn_bias`", {"attn_mask": None}),
        (TypeError, "'enable_gqa'; leave it out: grouped heads are seen", {"enable_gqa": True}),
        (TypeError, "'dropout_p'; leave it out", {"dropout_p": 0.0}),
        (
            TypeError,
            "mask is float32 but bool is wanted: a float mask is attn_bias .DTYPE-4",
            {"mask": np.ones((5, 7), np.float32)},
        ),
        (
            TypeError,
            "attn_bias is bool but .* is wanted: a boolean one is mask",
            {"attn_bias": np.ones((5, 7), bool)},
        ),
        (ValueError, "is_causal=1 but True or False is wanted .SHAPE-10", {"is_causal": 1}),
        (ValueError, "softcap=-1 but a finite number above 0, or None, is wanted", {"softcap": -1}),
        (
            TypeError,
            "kv_lengths is float64 but integers are wanted .DTYPE-7",
            {"kv_lengths": np.array([7.0, 5.0])},
        ),
        (ValueError, r"mask has shape \(5, 6\) but one that broadcasts", {"mask": np.ones((5, 6), bool)}),
        (TypeError, "query is an array of object but needs", {"query": np.zeros((2, 3, 5, 4), object)}),
        (TypeError, "query is a list, whose dtype is unknown: give an array", {"query": [[[1.0]]]}),
        (
            TypeError,
            "key is a masked array: give a plain one",
            {"key": np.ma.masked_array(np.zeros((2, 3, 7, 4), np.float32))},
        ),
    ],
)
def test_a_wrong_call_is_refused(error, words, changed):
    given = operands("assert/wrong")
    right = attention(**given)
    with pytest.raises(error, match=words):
        assert_conforms(right, **{**given, **changed})


def test_what_may_overflow_is_refused_with_the_reason():
    given = operands("assert/huge", dtype="float16")
    given = {name: x * np.float16(150) for name, x in given.items()}
    with pytest.raises(
        ValueError,
        match=r"^a logit with its bias overflows float16, so nothing can be derived: give smaller numbers or a",
    ):
        assert_conforms(attention(**given), **given)


def test_what_one_policy_may_overflow_another_judges():
    given = operands("assert/large-products", dtype="float16")
    given |= {name: given[name] * np.float16(120) for name in ("query", "key")}
    right = attention(**given, scale=2.0**-10)
    with pytest.raises(
        ValueError, match=r"under eager: an unscaled logit may overflow .*; under fused it is"
    ):
        assert_conforms(right, **given, scale=2.0**-10)
    with pytest.raises(ValueError, match=r"under eager: an unscaled logit may overflow .*"):
        expected(**given, scale=2.0**-10)
    assert assert_conforms(right, **given, scale=2.0**-10, policy="fused").grade == "fused"


def test_every_option():
    given = operands(
        "assert/options",
        heads=4,
        groups=2,
        q_len=5,
        kv_len=5,
        d_v=3,
        past_key=(2, 2, 2, 4),
        past_value=(2, 2, 2, 3),
    )
    mask = np.ones((5, 7), bool)
    mask[2, 3] = False
    options = {
        "mask": mask,
        "attn_bias": np.linspace(-1, 1, 35, dtype=np.float32).reshape(1, 1, 5, 7),
        "is_causal": True,
        "q_offset": np.array([2, 1]),
        "window": (2, None),
        "kv_lengths": np.array([7, 5]),
        "scale": 0.3,
        "softcap": 3.0,
        "sinks": np.array([0.5, -1.0, 0.0, 2.0], np.float32),
        "return_weights": True,
        "return_lse": True,
    }
    names = ("output", "weights", "lse", "present_key", "present_value")
    exact = expected(**given, **options)
    assert set(exact.value) == set(exact.tolerance) == set(names)
    narrow = {name: x.astype(np.float32) for name, x in exact.value.items()}
    assert assert_conforms(narrow, **given, **options).verdict == "pass"
    plain = {name: x for name, x in given.items() if not name.startswith("past")}
    base = expected(**plain).value["output"]
    for name, value in options.items():
        if name in ("q_offset", "return_weights", "return_lse"):
            continue
        one = {name: value}
        if name in ("mask", "attn_bias"):
            one = {name: value[..., :5]}
        changed = expected(**plain, **one).value["output"]
        if name != "kv_lengths":
            assert not np.array_equal(changed, base), name
    for name in names:
        off = dict(narrow)
        off[name] = off[name] + np.float32(0.01) * (1 + np.abs(off[name]))
        with pytest.raises(AssertionError, match=name):
            assert_conforms(off, **given, **options)


def layer(name):
    return operands(
        name,
        query=(2, 5, 6), key=(2, 7, 6), value=(2, 7, 6),
        w_q=(4, 6, 3), w_k=(2, 6, 3), w_v=(2, 6, 5), w_o=(4, 5, 6), b_q=(4, 3), b_o=(6,), grad_output=(2, 5, 6),
    )  # fmt: skip


def test_the_layer_and_its_gradients():
    given = layer("assert/layer")
    forward = {name: x for name, x in given.items() if name != "grad_output"}
    right = expected(**forward, operation=MHA).value["output"].astype(np.float32)
    assert assert_conforms(right, **forward, operation=MHA).results == ("output",)
    with pytest.raises(AssertionError, match=r"output\["):
        assert_conforms(right * np.float32(1.001), **forward, operation=MHA)
    exact = expected(**given, operation=MHA_VJP).value
    assert set(exact) == set(given) - {"grad_output"}
    gradients = {name: x.astype(np.float32) for name, x in exact.items()}
    assert assert_conforms(gradients, **given, operation=MHA_VJP).verdict == "pass"
    with pytest.raises(AssertionError, match="gradient of w_k"):
        assert_conforms({**gradients, "w_k": gradients["w_k"] * 2}, **given, operation=MHA_VJP)


def test_gradients_as_a_tuple_and_by_rows():
    given = operands("assert/gradients", q_len=6, grad_output=(2, 3, 6, 4))
    exact = expected(**given, operation=SDPA_VJP)
    three = tuple(exact.value[name].astype(np.float32) for name in ("query", "key", "value"))
    assert assert_conforms((*three, None), **given, operation=SDPA_VJP).results == ("query", "key", "value")
    judgement = assert_conforms((*three, None), **given, operation=SDPA_VJP, rows=[0, 5])
    assert (judgement.rows, judgement.results) == ((0, 5), ("query",))
    wrong = three[0].copy()
    wrong[1, 2, 5] += 1
    with pytest.raises(
        AssertionError, match=r"gradient of query\[1, 2, 5, \d\].*\n.*\n.*2 of 6 rows of the gradient"
    ):
        assert_conforms((wrong, *three[1:], None), **given, operation=SDPA_VJP, rows=[0, 5])


def test_rows():
    given = operands("assert/rows", q_len=300, kv_len=20)
    right = attention(**given)
    judgement = assert_conforms(right, **given, rows=9)
    assert len(judgement.rows) == 9
    assert {0, 1, 298, 299} <= set(judgement.rows)
    assert assert_conforms(right, **given, rows=[-1, 7, 7]).rows == (7, 299)
    exact = expected(**given, rows=[3, 250])
    assert exact.rows == (3, 250)
    assert exact.value["output"].shape == exact.tolerance["output"].shape == (2, 3, 2, 4)
    right[0, 0, 250] *= 2
    assert assert_conforms(right, **given, rows=[3, 251]).verdict == "pass"
    with pytest.raises(
        AssertionError, match=r"output\[0, 0, 250, \d\].*\n.*\n.*2 of 300 query rows judged: 3, 250"
    ):
        assert_conforms(right, **given, rows=[3, 250])


def test_of_a_call_that_is_too_large_some_rows_are_judged():
    query, key = np.zeros((1, 1, 40_000, 64), np.float16), np.ones((1, 1, 40_000, 64), np.float16)
    exact = expected(query, key, key, rows=2)
    assert exact.rows == (0, 39_999)
    from conformance.oracle.given import given

    chosen = given("scaled_dot_product_attention", query, key, key, None, {}, None).rows
    assert 64 <= len(chosen) < 40_000
    assert {0, 127, 128, 39_999} <= set(chosen)


def test_a_dtype_that_is_not_the_arrays_own():
    given = operands("assert/dtype", dtype="bfloat16")
    wide = {name: x.astype(np.float32) for name, x in given.items()}
    one, other = expected(**given), expected(**wide, dtype="bfloat16")
    assert np.array_equal(one.tolerance["output"], other.tolerance["output"])
    with pytest.raises(ValueError, match="query has numbers that bfloat16 does not hold"):
        expected(**{**wide, "query": np.full((2, 3, 5, 4), 0.1, np.float32)}, dtype="bfloat16")


@pytest.mark.parametrize(
    "dtype", [np.float32, np.dtype("float32"), ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)], ids=str
)
def test_a_dtype_may_be_an_object(dtype):
    given = operands("assert/dtype", dtype="bfloat16")
    one, other = expected(**given, dtype=dtype), expected(**given, dtype=np.dtype(dtype).name)
    assert np.array_equal(one.tolerance["output"], other.tolerance["output"])


@pytest.mark.parametrize("dtype", ["int8", "", np.int8, 3])
def test_a_dtype_that_operands_have_not_is_refused(dtype):
    words = re.escape(f"dtype={dtype!r} but one of float64, float32, float16, bfloat16 is wanted")
    with pytest.raises(ValueError, match=words):
        expected(**operands("assert/dtype"), dtype=dtype)


def test_the_byte_order_of_an_array_is_no_matter():
    given = operands("assert/bytes")
    right = attention(**given)
    swapped = {name: x.astype(">f4") for name, x in given.items()}
    assert assert_conforms(right.astype(">f4"), **swapped) == assert_conforms(right, **given)
    with pytest.raises(AssertionError, match="times what is allowed"):
        assert_conforms(right.astype(">f4") * 2, **swapped)


def test_nothing_given_is_written_to():
    given = operands("assert/untouched")
    right = attention(**given)
    before = {name: x.tobytes() for name, x in given.items()}
    for x in given.values():
        x.flags.writeable = False
    assert_conforms(right, **given)
    assert before == {name: x.tobytes() for name, x in given.items()}


def test_the_names_are_listed():
    assert {"assert_conforms", "expected", "Expected"} <= set(conformance.__all__)
    assert set(conformance.__all__) <= set(dir(conformance))
    assert conformance.Expected is type(expected(**operands("assert/names")))
    assert set(NUMPY_DTYPES) > set(DTYPES)
