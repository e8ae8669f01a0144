"""assert_conforms and expected with segments, and with a cotangent of the log-sum-exp."""

import re
from typing import Any

import numpy as np
import pytest
from judged_calls import operands

from conformance import assert_conforms, expected
from conformance.names import SDPA_VJP

SEGMENTS = {
    "q_segments": np.array([0, 1, 1, 0, 2], np.int32),
    "kv_segments": np.array([1, 0, 0, 1, 2, 5, 1], np.int32),
}


def test_segments_are_a_mask() -> None:
    given = operands("assert/segments")
    mask = SEGMENTS["q_segments"][:, None] == SEGMENTS["kv_segments"]
    right = expected(**given, mask=mask).value["output"].astype(np.float32)
    assert assert_conforms(right, **given, **SEGMENTS).verdict == "pass"
    ignored = expected(**given).value["output"].astype(np.float32)
    with pytest.raises(AssertionError, match="segments are ignored"):
        assert_conforms(ignored, **given, **SEGMENTS)


@pytest.mark.covers("GRAD-16")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_cotangent_of_the_lse_is_part_of_a_right_answer(dtype: str) -> None:
    given = operands("assert/grad-lse", dtype=dtype, grad_output=(2, 3, 5, 4))
    own = "float64" if dtype == "float64" else "float32"
    of_lse = np.linspace(-2, 2, 30, dtype=own).reshape(2, 3, 5)
    exact = expected(**given, grad_lse=of_lse, operation=SDPA_VJP).value
    right = {name: x.astype(given["query"].dtype) for name, x in exact.items()}
    assert (
        assert_conforms(right, **given, grad_lse=of_lse, operation=SDPA_VJP, policy="fused").verdict == "pass"
    )
    other = expected(**given, grad_lse=-of_lse, operation=SDPA_VJP).value
    wrong = {name: x.astype(given["query"].dtype) for name, x in other.items()}
    with pytest.raises(AssertionError, match="grad_lse is added to Delta"):
        assert_conforms(wrong, **given, grad_lse=of_lse, operation=SDPA_VJP, policy="fused")


def test_it_is_the_derivative_of_the_lse() -> None:
    given: dict[str, Any] = operands("assert/derivative", dtype="float64", sinks=(3,))
    of_lse = np.linspace(-1, 1, 30).reshape(2, 3, 5)
    nothing = np.zeros((2, 3, 5, 4))
    found = expected(**given, grad_output=nothing, grad_lse=of_lse, operation=SDPA_VJP).value
    assert not found["value"].any()
    step = 2.0**-10
    for name, place in (("query", (1, 2, 3, 0)), ("key", (0, 1, 6, 3)), ("sinks", (1,))):
        sums = []
        for sign in (1, -1):
            moved = given[name].copy()
            moved[place] += sign * step
            lse = expected(**{**given, name: moved}, return_lse=True).value["lse"]
            sums.append((lse * of_lse).sum())
        assert found[name][place] == pytest.approx((sums[0] - sums[1]) / (2 * step), abs=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_segments": None}, "q_segments is given alone but both or none are wanted (MASK-17)"),
        ({"q_segments": np.zeros(5)}, "q_segments is float64 but integers are wanted (DTYPE-7)"),
        (
            {"kv_segments": np.zeros((3, 7), int)},
            "kv_segments has shape (3, 7) but (7,) or (2, 7) is wanted (SHAPE-11)",
        ),
        (
            {"grad_lse": np.zeros((2, 3, 5), np.float32)},
            "grad_lse is given but scaled_dot_product_attention has no gradients: "
            "say operation='scaled_dot_product_attention_vjp'",
        ),
        (
            {"segment_ids": np.zeros(5, int)},
            "has no option 'segment_ids'; those of the queries are `q_segments`, those of the keys `kv_segments`",
        ),
    ],
)
def test_wrong_calls(changed: dict[str, Any], message: str) -> None:
    given = operands("assert/wrong-segments")
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        expected(**given, **{**SEGMENTS, **changed})


@pytest.mark.parametrize(
    ("of_lse", "message"),
    [
        (
            np.zeros((2, 3, 4), np.float32),
            "grad_lse has shape (2, 3, 4) but that of the lse, (2, 3, 5), is wanted (GRAD-14)",
        ),
        (
            np.zeros((2, 3, 5), np.float64),
            "grad_lse is float64 but float32 is wanted, as of the lse (GRAD-14)",
        ),
    ],
    ids=["shape", "dtype"],
)
def test_a_wrong_cotangent(of_lse: Any, message: str) -> None:
    given = operands("assert/wrong-lse", grad_output=(2, 3, 5, 4))
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        expected(**given, grad_lse=of_lse, operation=SDPA_VJP)
