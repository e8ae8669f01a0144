"""The second tier beyond 65,536 pairs of a query and a key: balls for the elements in question, of any size."""

import numpy as np
import pytest
from judged_calls import attention, operands
from test_certify import Wrong

from conformance.names import SDPA, SDPA_VJP
from conformance.oracle import WrongOracleError, certify, second
from conformance.oracle.dotted import dotted
from conformance.oracle.exact import elements, every_gradient, gradient_elements
from conformance.oracle.near import Near
from conformance.oracle.second import MOST_PAIRS
from conformance.oracle.tiers import First
from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.normal_form import pose

LONG = {"heads": 1, "batch": (1,), "d_k": 2}
RNG = np.random.default_rng(1)


@pytest.mark.parametrize("spread", [0, 15, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_a_row_are_exact(dtype, spread):
    def numbers(*shape):
        drawn = RNG.standard_normal(shape).astype(dtype).astype(np.float64)
        return drawn * 2.0 ** RNG.integers(-spread, spread + 1, shape) * (RNG.random(shape) < 0.8)

    row, rows = numbers(64), numbers(40, 64)
    found, plain = dotted(row, rows), Exact.of(row[None]) @ Exact.of(rows).transposed()
    assert all(found.ball(0, n) == plain.ball(0, n) for n in range(40))


def test_no_row_has_no_products():
    assert dotted(np.ones(4), np.ones((0, 4))).integers.ncols() == 0


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"softcap": 2.0, "is_causal": True, "q_offset": 1}, {"attn_bias": (5, 7)}),
        ({"scale": 0.3, "is_causal": True, "q_offset": -2}, {"sinks": (4,), "grad_lse": (2, 4, 5)}),
        ({}, {"past_key": (2, 2, 3, 4), "past_value": (2, 2, 3, 4)}),
    ],
    ids=["softcap and bias", "sinks, grad_lse and empty rows", "past"],
)
def test_elements_are_those_of_the_whole(options, more):
    new = 4 if "past_key" in more else 7
    inputs = operands("long/elements", heads=4, groups=2, kv_len=new, grad_output=(2, 4, 5, 4), **more)
    problem = pose(SDPA_VJP, {name: x.astype(np.float64) for name, x in inputs.items()}, options, None)
    whole = every_gradient(problem, (5, 7), ("query", "key", "value"))
    for name, (high, low) in whole.items():
        found = gradient_elements(problem, name, np.ndindex(high.shape))
        for place, (hi, lo) in found.items():
            assert (hi, lo) == pytest.approx((high[place], low[place]), rel=1e-15, abs=1e-33), (name, place)


def test_a_first_tier_that_is_wrong_is_stopped_at_large_sizes():
    inputs = operands("long/wrong", q_len=1, kv_len=66_000, **LONG)
    found, honest = (
        certify(SDPA, inputs, {}, "float32", first=first, policies=("eager",)) for first in (Wrong, First)
    )
    assert found.second.problem.visible.size > MOST_PAIRS
    right = attention(**inputs)
    with pytest.raises(WrongOracleError, match=r"output\[.*first tier.*second.*report"):
        found.judge({"output": right})
    assert honest.judge({"output": right}).verdict == "pass"
    judgement = honest.judge({"output": right * np.float32(1.01)})
    assert judgement.verdict == "fail"
    assert honest.confirmed["output"][judgement.worst.index]


def test_so_is_one_of_gradients(monkeypatch):
    monkeypatch.setattr(second, "MOST_PAIRS", 8)
    inputs = operands("long/gradients", grad_output=(2, 3, 5, 4))
    honest = certify(SDPA_VJP, inputs, {}, "float32")
    right = {name: golden.hi.astype(np.float32) for name, golden in honest.case.expected.items()}
    for name in right:
        spoilt = {**right, name: right[name] * np.float32(1.01)}
        assert certify(SDPA_VJP, inputs, {}, "float32").judge(spoilt).verdict == "fail"
        if name != "query":
            continue
        with pytest.raises(WrongOracleError):
            certify(SDPA_VJP, inputs, {}, "float32", first=Wrong).judge(right)


def test_gradients_of_some_elements_beyond_65536_pairs_are_those_of_the_first_tier():
    from conformance.oracle.backward import gradients
    from conformance.vectors.generate.float64_model import approximate

    inputs = operands("long/keys", q_len=3, kv_len=30_000, grad_output=(1, 1, 3, 2), **LONG)
    problem = pose(SDPA_VJP, {name: x.astype(np.float64) for name, x in inputs.items()}, {}, None)
    first = gradients(problem, approximate(problem), (1, 1), ("query", "key", "value"), Near)
    for name, place in (("query", (0, 0, 2, 1)), ("key", (0, 0, 29_999, 1)), ("value", (0, 0, 16_384, 0))):
        (hi, lo), (high, low, error) = gradient_elements(problem, name, [place])[place], first[name]
        assert abs((hi - high[place]) + (lo - low[place])) <= error[place], name


def test_the_lse_and_weights_of_a_long_row():
    inputs = operands("long/lse", q_len=1, kv_len=5_000, **LONG)
    problem = pose(SDPA, {name: x.astype(np.float64) for name, x in inputs.items()}, {}, None)
    lse = elements(problem, "lse", [(0, 0, 0)])[0, 0, 0][0]
    weights = elements(problem, "weights", [(0, 0, 0, 4_999)])[0, 0, 0, 4_999][0]
    logits = (problem.inputs["query"] @ problem.inputs["key"].swapaxes(-1, -2))[0, 0, 0] / 2**0.5
    assert lse == pytest.approx(np.log(np.exp(logits).sum()), rel=1e-14)
    assert weights == pytest.approx(np.exp(logits[-1] - lse), rel=1e-12)
