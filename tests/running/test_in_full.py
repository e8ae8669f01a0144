"""Answers too large for a report are asked for once more, so that a diagnosis sees them."""

from typing import Any

import pytest

from conformance.judging.verdict import Row
from conformance.running.in_full import in_full
from conformance.running.messages import Question
from conformance.running.runner import InProcess, answered_once
from conformance.running.target import adopt
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
LARGE = "kernels/prompt-127-bias-causal-lse"  # an output of more characters than a row holds


def asker(factor: float) -> InProcess:
    """Attention whose outputs are spoiled by a factor."""
    import mha_core

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        found = mha_core.scaled_dot_product_attention(query, key, value, **options)
        return (
            {"output": found.output * factor, "lse": found.lse}
            if options.get("return_lse")
            else found * factor
        )

    return InProcess(adopt(attention, "spoiled"))


def row(name: str) -> Row:
    """A row that fails."""
    found = answered_once(Question(CASES[name], "float32"), "eager", asker(2.0))
    assert found.verdict == "fail"
    return found


def test_a_large_answer_is_held() -> None:
    large, small = row(LARGE), row("attention/softcap")
    assert large.got_left_out
    again, other = in_full([large, small], CASES, "eager", lambda: asker(2.0))
    assert [got.output for got in again.got] == ["output", "lse"]
    assert not again.got_left_out
    assert other is small


def test_one_that_passes_the_second_time_is_not() -> None:
    large = row(LARGE)
    assert in_full([large], CASES, "eager", lambda: asker(1.0)) == [large]


def test_nothing_is_started_where_every_answer_is_there() -> None:
    small = row("attention/softcap")
    assert in_full([small], CASES, "eager", lambda: pytest.fail("started")) == [small]
