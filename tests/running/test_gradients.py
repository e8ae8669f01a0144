"""Targets that offer gradients: how they are called, and the forms that they may return."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import mha_core
from conformance.errors import UsageError
from conformance.names import MHA_VJP, OPERATIONS, SDPA_VJP
from conformance.running.invoke import call
from conformance.running.messages import Answer
from conformance.running.target import adopt

WEIGHTS = {"w_q": (6, 4, 5), "w_k": (6, 4, 5), "w_v": (6, 4, 7), "w_o": (6, 7, 3)}


def arrays(*names: str) -> dict[str, Any]:
    """H = 6, q_len = 2, kv_len = 3, d_k = 4, d_v = 5; with a name of one that is optional."""
    random = np.random.default_rng(5)
    shapes = {"query": (6, 2, 4), "key": (6, 3, 4), "value": (6, 3, 5), "grad_output": (6, 2, 5)}
    shapes |= {name: {"attn_bias": (2, 3), "sinks": (6,), "past_key": (6, 1, 4)}[name] for name in names}
    return {name: random.random(shape, np.float32) for name, shape in shapes.items()}


def ask(function: Any, inputs: dict[str, Any], operation: str = SDPA_VJP, **attributes: Any) -> Answer:
    target = adopt(type("T", (), {operation: staticmethod(function), **attributes}), "x")
    return call(target, operation, inputs, {}, {})


def test_the_core_claims_its_gradients() -> None:
    assert adopt(mha_core, "mha_core").hello.operations == OPERATIONS


def test_the_core_answers() -> None:
    inputs = arrays("attn_bias", "sinks")
    answer = call(adopt(mha_core, "mha_core"), SDPA_VJP, inputs, {}, {})
    assert {name: x.shape for name, x in answer.outputs.items()} == {
        name: x.shape for name, x in inputs.items() if name != "grad_output"
    }


def test_a_function_is_known_by_its_name_and_claims_its_options() -> None:
    def scaled_dot_product_attention_vjp(
        query: Any, key: Any, value: Any, grad_output: Any, *, scale: Any = None
    ) -> None: ...

    hello = adopt(scaled_dot_product_attention_vjp, "x").hello
    assert hello.operations == (SDPA_VJP,)
    assert "scale" in hello.features
    assert "sinks" not in hello.features


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, g: {"query": q, "key": k, "value": v, "grad": g},
        lambda *, grad_output, value, key, query: {
            "query": query,
            "key": key,
            "value": value,
            "grad": grad_output,
        },
        lambda *xs: dict(zip(("query", "key", "value", "grad"), xs, strict=True)),
    ],
    ids=["position", "keyword", "any"],
)
def test_by_position_or_by_keyword(function: Any) -> None:
    inputs = arrays()
    answer = ask(function, inputs)
    for name, x in answer.outputs.items():
        np.testing.assert_array_equal(x, inputs["grad_output" if name == "grad" else name])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda query, key, value: None, "query, key, value, grad_output"),
        (lambda q, k, v: None, "4 arrays by position"),
        (lambda query, key, value, grad_output, lse: None, "the parameter 'lse' needs a default value"),
    ],
)
def test_what_cannot_be_called(function: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(function, arrays())


def test_a_layer_needs_its_weights() -> None:
    with pytest.raises(UsageError, match="w_q, w_k, w_v, w_o"):
        ask(lambda query, key, value, grad_output: None, {}, MHA_VJP)


def test_layout_swaps_the_gradients_as_their_arguments() -> None:
    got: dict[str, Any] = {}

    def function(query: Any, key: Any, value: Any, grad_output: Any, attn_bias: Any = None) -> Any:
        got.update(query=query, grad_output=grad_output, attn_bias=attn_bias)
        return {"query": query, "key": key, "value": value, "attn_bias": attn_bias}

    inputs = arrays("attn_bias")
    answer = ask(function, inputs, layout="blhd")
    assert {name: x.shape for name, x in got.items()} == {
        "query": (2, 6, 4),
        "grad_output": (2, 6, 5),
        "attn_bias": (2, 3),
    }
    for name, x in answer.outputs.items():
        np.testing.assert_array_equal(x, inputs[name])


def test_layout_leaves_the_gradients_of_a_layer() -> None:
    random = np.random.default_rng(5)
    inputs = {name: random.random((2, 3, 4), np.float32) for name in ("query", "key", "value")}
    inputs |= {name: random.random(shape, np.float32) for name, shape in WEIGHTS.items()}
    inputs["grad_output"] = random.random((2, 3, 3), np.float32)

    def function(**inputs: Any) -> Any:
        assert inputs.pop("grad_output").shape == (2, 3, 3)
        return inputs

    answer = ask(function, inputs, MHA_VJP, layout="blhd", features=())
    assert {name: x.shape for name, x in answer.outputs.items()} == {
        name: x.shape for name, x in inputs.items() if name != "grad_output"
    }


THREE = {"query", "key", "value"}


@pytest.mark.parametrize(
    ("result", "given", "names"),
    [
        (lambda q, k, v: {"query": q, "key": k, "value": v, "sinks": None}, (), THREE),
        (lambda q, k, v: (q, k, v, None), (), THREE),
        (lambda q, k, v: (q, k, v, q), ("attn_bias",), THREE | {"attn_bias"}),
        (lambda q, k, v: namedtuple("Gradients", "query key value")(q, k, v), (), THREE),
    ],
    ids=["mapping", "tuple", "with bias", "named"],
)
def test_forms_of_an_answer(result: Any, given: tuple[str, ...], names: set[str]) -> None:
    answer = ask(lambda query, key, value, grad_output, **_: result(query, key, value), arrays(*given))
    assert set(answer.outputs) == names


def test_a_tuple_has_no_gradient_of_sinks() -> None:
    answer = ask(
        lambda query, key, value, grad_output, sinks=None: (query, key, value, None), arrays("sinks")
    )
    assert (answer.kind, answer.message) == (
        "unsupported",
        "returns (d_query, d_key, d_value, d_attn_bias or None), which has no gradient of sinks",
    )


@pytest.mark.parametrize(
    ("operation", "result", "message"),
    [
        (SDPA_VJP, lambda q: None, "returned None, wanted a mapping of gradients by argument, or the tuple"),
        (SDPA_VJP, lambda q: q, "returned an array of float32"),
        (SDPA_VJP, lambda q: (q, q, q), "returned a tuple of 3 (an array of float32"),
        (MHA_VJP, lambda q: (q, q, q, None), "returned a tuple of 4 (an array of float32"),
        (MHA_VJP, lambda q: None, "returned None, wanted a mapping of gradients by argument"),
    ],
)
def test_what_is_no_answer(operation: str, result: Any, message: str) -> None:
    answer = ask(lambda **inputs: result(inputs["query"]), arrays(), operation)
    assert answer.kind == "wrong"
    assert answer.message.startswith(message)


def test_a_written_gradient_of_the_output_is_seen() -> None:
    def function(query: Any, key: Any, value: Any, grad_output: Any) -> Any:
        grad_output[...] = 0
        return (query, key, value, None)

    assert ask(function, arrays()).message == "grad_output was written to during the call (IND-5)"
