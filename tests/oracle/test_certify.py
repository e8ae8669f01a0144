"""Two tiers: a first one that is wrong is stopped by the second, and reports nothing of the target."""

import flint
import numpy as np
import pytest
from judged_calls import attention, operands

from conformance.names import SDPA, SDPA_VJP
from conformance.oracle import WrongOracleError, certify
from conformance.oracle.exact import closely
from conformance.oracle.tiers import First
from conformance.vectors.generate.ball_rounding import UndecidedError


class Wrong(First):
    """A first tier whose results are off by a share of themselves, and which knows nothing of it."""

    share = 1e-3

    def _kept(self, found, places):
        return super()._kept({n: (h * (1 + self.share), lo, e) for n, (h, lo, e) in found.items()}, places)


class Unsure(First):
    """A first tier that is wrong and promises nothing."""

    def _kept(self, found, places):
        return super()._kept(
            {n: (h + 1.0, lo, np.full_like(h, np.inf)) for n, (h, lo, e) in found.items()}, places
        )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_first_tier_that_is_wrong_makes_no_failure(dtype):
    inputs = operands("certify/wrong", dtype=dtype)
    found = certify(SDPA, inputs, {}, dtype, first=Wrong)
    right = attention(**inputs)
    if dtype == "bfloat16":  # a thousandth is less than it may err
        assert found.judge({"output": right}).verdict == "pass"
    else:
        with pytest.raises(WrongOracleError, match=r"output\[.*first tier.*second.*report"):
            found.judge({"output": right})


def test_one_of_gradients_neither():
    inputs = operands("certify/gradients", grad_output=(2, 3, 5, 4))
    found = certify(SDPA_VJP, inputs, {}, "float32", first=Wrong)
    honest = certify(SDPA_VJP, inputs, {}, "float32")
    right = {name: golden.hi.astype(np.float32) for name, golden in honest.case.expected.items()}
    assert honest.judge(right).verdict == "pass"
    with pytest.raises(WrongOracleError):
        found.judge(right)


def test_what_the_first_tier_does_not_promise_comes_from_the_second():
    inputs = operands("certify/unsure")
    found, honest = (certify(SDPA, inputs, {}, "float32", first=first) for first in (Unsure, First))
    assert found.confirmed["output"].all()
    assert not honest.confirmed
    golden, other = found.case.expected["output"], honest.case.expected["output"]
    assert np.abs(golden.hi - other.hi).max() < 1e-15
    assert found.judge({"output": attention(**inputs)}).verdict == "pass"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_failure_is_confirmed(dtype):
    inputs = operands("certify/fails", dtype=dtype)
    found = certify(SDPA, inputs, {}, dtype)
    wrong = (attention(**inputs) * np.float32(1.5)).astype(inputs["query"].dtype)
    judgement = found.judge({"output": wrong})
    assert judgement.verdict == "fail"
    flat = np.ravel_multi_index(judgement.worst.index, found.case.expected["output"].shape)
    assert found.confirmed["output"].flat[flat]


def test_a_failure_of_all_elements_together_is_confirmed():
    inputs = operands("certify/rms", q_len=40, kv_len=40, d_k=8)
    found = certify(SDPA, inputs, {}, "float32")
    golden = found.case.expected["output"]
    bound = golden.bounds["float32"]["eager"]
    sides = np.where(np.arange(golden.hi.size).reshape(golden.hi.shape) % 2, 1.0, -1.0)
    off = np.minimum(2.0 * bound.rms.astype(float), 0.9 * bound.worst)
    judgement = found.judge({"output": (golden.hi + sides * off).astype(np.float32)})
    assert "RMS" in judgement.message
    assert found.confirmed["output"].any()


def test_every_kind_of_result_has_a_second_tier():
    inputs = operands("certify/all", past_key=(2, 3, 2, 4), past_value=(2, 3, 2, 4))
    options = {"return_weights": True, "return_lse": True, "softcap": 2.0}
    found, honest = (certify(SDPA, inputs, options, "float64", first=first) for first in (Unsure, First))
    assert set(found.case.expected) == {"output", "weights", "lse", "present_key", "present_value"}
    for name, golden in found.case.expected.items():
        assert np.abs(golden.hi - honest.case.expected[name].hi).max() <= 2.0**-52, name


def test_long_rows_are_looked_at_in_parts(monkeypatch):
    inputs = operands("certify/parts", q_len=9, kv_len=33, batch=(3,), groups=1)
    options = {"is_causal": True, "q_offset": 24, "return_lse": True, "return_weights": True}
    whole = certify(SDPA, inputs, options, "float32")
    monkeypatch.setattr("conformance.vectors.generate.normal_form.AT_ONCE", 3 * 33 * 2)
    parted = certify(SDPA, inputs, options, "float32")
    for name, golden in whole.case.expected.items():
        other = parted.case.expected[name]
        assert np.array_equal(golden.hi.astype(np.float32), other.hi.astype(np.float32)), name
        for policy, bound in golden.bounds["float32"].items():
            assert np.array_equal(bound.worst, other.bounds["float32"][policy].worst)
            assert np.array_equal(bound.rms, other.bounds["float32"][policy].rms)
        assert parted.own_error[name].shape == golden.hi.shape


def test_some_rows_are_those_of_the_whole():
    inputs = operands("certify/rows", q_len=12, grad_output=(2, 3, 12, 4), attn_bias=(12, 7))
    rows = (0, 3, 11)
    whole, some = (certify(SDPA_VJP, inputs, {}, "float32", rows=r).case.expected for r in (None, rows))
    assert set(some) == {"query"}
    assert some["query"].rows == rows
    assert np.allclose(some["query"].hi, whole["query"].hi[..., rows, :], rtol=1e-12)
    bounds = [golden["query"].bounds["float32"]["eager"].worst for golden in (some, whole)]
    assert np.allclose(bounds[0], bounds[1][..., rows, :], rtol=0.01)


def test_numbers_that_the_dtype_does_not_hold_are_refused():
    inputs = operands("certify/exact") | {"key": np.full((2, 3, 7, 4), 0.1)}
    with pytest.raises(ValueError, match="key has numbers that float32 does not hold"):
        certify(SDPA, inputs, {}, "float32")


def test_a_small_number_is_no_zero():
    """A weight of e^-231 may decide an output of float64: more bits are asked for, and no zero is taken for it."""
    small = flint.arb(9.5280681889942e-101, 3.79e-115)
    around = flint.arb(0, 1e-200)
    for ball, gradient in ((small, False), (small, True), (around, False)):
        with pytest.raises(UndecidedError):
            closely(ball, gradient)
    assert closely(around, gradient=True) == (0.0, 0.0)
    assert closely(flint.arb((1, -1200)) * flint.arb(0, 1)) == (0.0, 0.0)
