"""Targets whose log-sum-exp is to base 2 are judged as those of the natural logarithm are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.errors import UsageError
from conformance.names import SDPA, SDPA_VJP
from conformance.running.log_base import LN2, answered, asked, natural
from conformance.running.messages import Answer, Question
from conformance.running.protocol import encode, hello_message, parse_hello
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.target import adopt
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
FORWARD = ("attention/weights-and-lse", "mask/empty-row-lse-is-sink", "mask/empty-row-weights-lse")
BACKWARD = ("gradient/lse-plain", "gradient/lse-sinks", "gradient/lse-in-float16", "gradient/lse-of-24-bits")


class InBaseTwo(Implementation):
    """The reference, whose log-sum-exp is to base 2: what it returns, and what it is given the gradient of."""

    lse_base: Any = 2

    def __init__(self) -> None:
        super().__init__(REFERENCE)

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, **options: Any
    ) -> Mapping[str, Any]:
        outputs = dict(super().scaled_dot_product_attention(query, key, value, **options))
        if "lse" in outputs:
            outputs["lse"] = outputs["lse"] / outputs["lse"].dtype.type(LN2)
        return outputs

    def scaled_dot_product_attention_vjp(
        self, query: Any, key: Any, value: Any, grad_output: Any, **options: Any
    ) -> Mapping[str, Any]:
        if options.get("grad_lse") is not None:
            given = options["grad_lse"]
            options["grad_lse"] = given / given.dtype.type(LN2)
        return super().scaled_dot_product_attention_vjp(query, key, value, grad_output, **options)


class Undeclared(InBaseTwo):
    lse_base = None


def verdicts(target: Any, *names: str) -> list[str]:
    rows = list(run(Request(target=target), [CASES[name] for name in names]))[1:]
    return [row.verdict for row in rows]  # type: ignore[union-attr]


@pytest.mark.covers("ATT-14", "GRAD-16")
@pytest.mark.parametrize("names", [FORWARD, BACKWARD], ids=["returned", "given"])
def test_a_target_that_says_so_passes_and_one_that_does_not_fails(names: tuple[str, ...]) -> None:
    assert set(verdicts(InBaseTwo(), *names)) == {"pass"}
    assert set(verdicts(Undeclared(), names[0])) == {"fail"}


def test_the_base_travels_with_the_start() -> None:
    hello = adopt(InBaseTwo(), "x").hello
    assert hello.lse_base == "2"
    assert hello_message(hello)["lse_base"] == 2
    assert parse_hello(encode(hello_message(hello)), "x") == hello
    assert "lse_base" not in hello_message(adopt(Undeclared(), "x").hello)


@pytest.mark.parametrize("base", [10, "ten", True, 2.5])
def test_another_base_is_refused(base: Any) -> None:
    target = type("Other", (InBaseTwo,), {"lse_base": base})()
    with pytest.raises(UsageError, match="x: lse_base must be 2, or 'e' for natural logarithms, got"):
        adopt(target, "x")


@pytest.mark.parametrize("base", ["e", np.e])
def test_natural_logarithms_may_be_declared(base: Any) -> None:
    assert adopt(type("Natural", (InBaseTwo,), {"lse_base": base})(), "x").hello.lse_base == "e"


def test_what_is_returned_becomes_natural_and_nothing_else_changes() -> None:
    output, lse = np.ones((1, 2), np.float16), np.array([1.0, -np.inf], np.float16)
    found = natural({"output": output, "lse": lse})
    assert found["output"] is output
    assert found["lse"].dtype == np.float32, "another rounding to 16 bits would be the suite's"
    assert found["lse"].tolist() == [np.float32(LN2), -np.inf]
    assert natural({"lse": lse.astype(np.float64)})["lse"].dtype == np.float64
    assert answered(Answer("outputs", outputs={"lse": lse}), "e").outputs["lse"] is lse
    assert answered(Answer("error", "x"), "2") == Answer("error", "x")


def test_a_cotangent_is_given_times_ln_two_in_the_dtype_of_the_lse() -> None:
    case = CASES["gradient/lse-in-float16"]
    question = Question(case, "float16")
    assert asked(question, "e") is question
    given = asked(question, "2").case.operands("float16")["grad_lse"]
    assert given.dtype == np.float32
    assert np.array_equal(given, (case.inputs["grad_lse"].astype(np.float64) * LN2).astype(np.float32))
    plain = Question(CASES["gradient/plain"], "float32")
    assert asked(plain, "2") is plain
    assert {SDPA, SDPA_VJP} <= set(adopt(InBaseTwo(), "x").hello.operations)
