"""Gradients of sampled keys at production size, under the ordinary bound."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.exploring.claims import Claims
from conformance.exploring.large import sampled
from conformance.exploring.large.call import Large, line, read_token, token
from conformance.exploring.large.draw import draw
from conformance.exploring.large.edges import BACKWARD, few_rows
from conformance.exploring.large.sampled import certified
from conformance.exploring.large.sampling import key_samples
from conformance.exploring.large.told import Told
from conformance.exploring.large.where import ask
from conformance.names import DTYPES, FEATURES, SDPA, SDPA_VJP
from conformance.oracle import WrongOracleError, certify
from conformance.oracle.tiers import First
from conformance.running.target import Target, adopt, load

FEW = Large("sampled", SDPA_VJP, q_len=300, kv_len=120, d_k=64, heads=2, few=True, stream=3)
CALLS: dict[str, Large] = {
    "few": FEW,
    "causal": replace(FEW, few=False, causal=True, offset=-180, dtype="float16"),
    "window": replace(FEW, few=False, window=(10, 0), offset=0, dtype="bfloat16"),
    "mask": replace(FEW, mask="q", scale=0.25),
    "many": Large("sampled", SDPA_VJP, batch=65_537, q_len=2, kv_len=3, d_k=8, d_v=8, stream=4),
}


def told(target: Target, call: Large) -> Told:
    found = ask(target, call, "eager")
    assert found.pieces is not None, found.message
    return certified(call, "eager", found)


def changed(name: str, change: Any) -> Target:
    """The right gradients, one of them changed."""
    right = load("numpy").calls[SDPA_VJP].function

    class Changed:
        def scaled_dot_product_attention_vjp(self, query: Any, key: Any, value: Any, grad_output: Any) -> Any:
            found = dict(right(query, key, value, grad_output))
            return {**found, name: change(found[name])}

    return adopt(Changed(), "changed")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_right_gradients_of_keys_raise_no_alarm(call: Large) -> None:
    found = told(load("numpy"), call)
    assert found.kind == "judged"
    assert not found.wrong, found.message
    assert key_samples(call)
    assert read_token(token(call)) == call


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_gradient_of_keys_that_is_off_is_seen(name: str) -> None:
    for call in (CALLS["few"], CALLS["many"]):
        found = told(changed(name, lambda x: x * np.float32(1.001)), call)
        assert f"gradient of {name}[" in found.message
        assert "times what is allowed (NUM-1)" in found.message


def test_an_entry_beyond_65535_is_judged_and_named() -> None:
    def lost(x: Any) -> Any:
        x = x.copy()
        x[65_536:] = 0
        return x

    assert "gradient of value[65536, 0, " in told(changed("value", lost), CALLS["many"]).message


def test_queries_that_are_dropped_are_seen_in_the_gradient_of_keys() -> None:
    right = load("numpy").calls[SDPA_VJP].function

    class Drops:
        def scaled_dot_product_attention_vjp(self, query: Any, key: Any, value: Any, grad_output: Any) -> Any:
            found = right(query, key, value, grad_output)
            of_keys = right(query[:, :, :256], key, value, grad_output[:, :, :256])
            return {**of_keys, "query": found["query"]}

    assert any(row >= 256 for row in few_rows(FEW))
    assert "; 704 of 704 elements" in told(adopt(Drops(), "drops"), replace(FEW, heads=1)).message


def test_what_keys_rest_on_is_short_enough() -> None:
    claims = Claims((SDPA, SDPA_VJP), frozenset(FEATURES), DTYPES, "large")
    calls = [found[1] for n in range(400) if (found := draw(claims, 5, n)) is not None]
    some = [call for call in calls if call.gradients and call.family == "sampled"]
    assert {call.few for call in some} == {True, False}
    for call in some:
        samples = key_samples(call)
        assert sum(sample.pairs(call) for sample in samples) <= BACKWARD
        assert all(
            sample.keys[0] <= min(sample.slots) <= max(sample.slots) < sample.keys[1] for sample in samples
        )
        assert samples or not call.few
    assert "the cotangent zero in the others" in line(next(call for call in some if call.few))


def test_the_bound_is_the_one_that_all_keys_have() -> None:
    (sample,) = key_samples(replace(FEW, kv_len=40, heads=1))
    inputs = sampled.reduced_to_keys(replace(FEW, kv_len=40, heads=1), sample)
    keys = sample.slots[:3]
    whole, some = (certify(SDPA_VJP, inputs, {}, "float32", keys=k, policies=("eager",)) for k in ((), keys))
    assert set(some.case.expected) == {"key", "value"}
    for name, golden in some.case.expected.items():
        of_all = whole.case.expected[name]
        assert golden.rows == keys
        assert np.array_equal(golden.hi, of_all.hi[..., list(keys), :])
        for which in ("worst", "rms"):
            one, other = (getattr(x.bounds["float32"]["eager"], which) for x in (golden, of_all))
            assert np.array_equal(one, other[..., list(keys), :])


@pytest.mark.parametrize("pairs", [1 << 16, 1])
def test_a_first_tier_that_is_wrong_of_keys_is_stopped(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(First):
        def _kept(self, found: Any, places: Any) -> Any:
            return super()._kept({n: (h * 1.001, lo, e) for n, (h, lo, e) in found.items()}, places)

    monkeypatch.setattr("conformance.oracle.second.MOST_PAIRS", pairs)
    call = replace(FEW, kv_len=40, heads=1)
    (sample,) = key_samples(call)
    inputs, keys = sampled.reduced_to_keys(call, sample), sample.slots
    wrong, honest = (
        certify(SDPA_VJP, inputs, {}, "float32", keys=keys, policies=("eager",), first=first)
        for first in (Wrong, First)
    )
    right = {}
    for name, golden in honest.case.expected.items():
        right[name] = np.zeros(golden.shape, np.float32)
        right[name][..., list(keys), :] = golden.hi
    assert honest.judge(right).verdict == "pass"
    with pytest.raises(WrongOracleError, match=r"gradient of key\["):
        wrong.judge(right)
    assert honest.judge({**right, "value": right["value"] * np.float32(1.01)}).verdict == "fail"
