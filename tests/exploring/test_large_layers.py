"""Layers of production size: the closed form is that of their heads, mistakes are named, right ones are not blamed."""

from dataclasses import replace
from typing import Any

import large_layers
import numpy as np
import pytest

from conformance.exploring.claims import Claims
from conformance.exploring.large import layer
from conformance.exploring.large.call import LOUD, Large, line, read_token, token
from conformance.exploring.large.draw import draw, needs
from conformance.exploring.large.making import host, maker
from conformance.exploring.large.sampled import certified
from conformance.exploring.large.told import Told
from conformance.exploring.large.where import ask
from conformance.names import DTYPES, FEATURES, MHA, MHA_VJP, SDPA, SDPA_VJP
from conformance.running.target import Target, adopt, load

LAYER = Large(operation=MHA, batch=2, heads=6, groups=3, q_len=7, kv_len=130, d_v=96, stream=5)
WIDE = Large(operation=MHA, heads=66, groups=66, q_len=2, kv_len=33, stream=2)
LONG = Large(operation=MHA, heads=4, groups=4, q_len=16, kv_len=2000, stream=1)


def told(target: Target, call: Large, policy: str = "eager") -> Told:
    found = ask(target, call, policy)
    return found if found.pieces is None else certified(call, policy, found)


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"members": 2, "bias": True, "dtype": "bfloat16"},
        {"members": LOUD, "lse": True, "sinks": True, "dtype": "float16", "bias": True},
        {"family": "counts", "levels": 4, "bias": True},
        {"family": "sampled", "lse": True, "causal": True, "offset": 3, "sinks": True},
        {"family": "sampled", "dtype": "bfloat16", "mask": "q"},
        {"mask": "k", "softcap": 256.0, "lengths": True},
        {"operation": MHA_VJP, "members": 2, "bias": True},
        {
            "operation": MHA_VJP,
            "members": 2,
            "strided": True,
            "causal": True,
            "offset": 123,
            "dtype": "float16",
        },
    ],
    ids=str,
)
def test_a_right_layer_raises_no_alarm(numbers: dict[str, Any]) -> None:
    call = replace(LAYER, **numbers)
    found = told(load("numpy"), call)
    assert found.kind == "judged"
    assert found.rows
    assert not found.wrong, found.message
    assert read_token(token(call)) == call


@pytest.mark.parametrize("library", ["torch", "jax", "array-api-strict"])
@pytest.mark.parametrize("numbers", [{"bias": True}, {"family": "sampled"}], ids=str)
def test_every_library_makes_the_same_layer(library: str, numbers: dict[str, Any]) -> None:
    pytest.importorskip(library.replace("-", "_"))
    call = replace(LAYER, heads=2, groups=1, kv_len=9, d_v=64, **numbers)

    class Taker:
        array_type = library

        def multi_head_attention(self, query: Any, key: Any, value: Any, **others: Any) -> None: ...

    target = adopt(Taker(), "taker")
    theirs, ours = (
        {**layer.operands(call, make), **layer.weights(call, make)}
        for make in (maker(target, "float32"), host("float32"))
    )
    for name, array in ours.items():
        assert np.array_equal(target.take(theirs[name]), array), name


CALLS: dict[str, tuple[Large, str, str]] = {
    "heads_from_64_wrap": (WIDE, "of head 64 asked key", "head 64 or more"),
    "output_of_heads_from_64_wraps": (WIDE, "output[0, 0]", ""),
    "columns_from_256_dropped": (replace(WIDE, bias=True), "output[0, 0] of head", ""),
    "biases_ignored": (replace(LONG, bias=True), "output[0, 0] of head", ""),
    "layer_drops_a_tile": (replace(LONG, members=LOUD), "as if what was asked were not there", "key 1,280 to 1,535"),
    "layer_scale_off_by_2_percent": (
        replace(LONG, family="sampled", kv_len=300), "times what is allowed (NUM-1)", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_of_a_layer_is_seen_and_named(name: str) -> None:
    call, said, common = CALLS[name]
    found = told(adopt(large_layers.target(**large_layers.MISTAKES[name]), name), call)
    assert found.wrong
    assert said in found.message
    assert common in found.needs
    assert not told(adopt(large_layers.right, "right"), call).failed


@pytest.mark.parametrize("wrong", ["query", "key", "value"])
def test_a_wrong_gradient_of_a_layer_is_seen(wrong: str) -> None:
    right = load("numpy").calls[MHA_VJP].function

    class Doubles:
        def multi_head_attention_vjp(
            self,
            query: Any,
            key: Any,
            value: Any,
            grad_output: Any,
            *,
            w_q: Any,
            w_k: Any,
            w_v: Any,
            w_o: Any,
        ) -> Any:
            found = right(query, key, value, grad_output, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o)
            return {**found, wrong: found[wrong] * 2}

    found = told(
        adopt(Doubles(), "doubles"), replace(LAYER, operation=MHA_VJP, d_v=64, members=2, strided=True)
    )
    assert f"gradient of {wrong}[0, " in found.message
    assert "2 times what is wanted" in found.message


def test_layers_are_drawn_behind_the_calls_without_projections() -> None:
    without, every = (
        Claims(operations, frozenset(FEATURES), DTYPES, "large")
        for operations in ((SDPA, SDPA_VJP), (SDPA, MHA, SDPA_VJP, MHA_VJP))
    )
    assert [draw(without, 7, n) for n in range(14)] == [draw(every, 7, n) for n in range(14)]
    alone = Claims((MHA,), frozenset({"is_causal"}), ("float32",), "large")
    for n in range(60):
        found = draw(alone, 1, n)
        assert found is not None
        assert found[1].operation == MHA
        assert needs(found[1]) <= {"is_causal"}
    calls = [found[1] for n in range(300) if (found := draw(every, 7, n)) is not None]
    layers = [call for call in calls if call.layer]
    assert {call.family for call in layers} == {"address", "counts", "sampled"}
    assert max(call.heads for call in layers) > 128
    assert max(call.kv_len for call in layers) >= 16_383
    assert all(read_token(token(call)) == call for call in layers)
    assert "heads on" in line(next(call for call in layers if call.groups < call.heads))
