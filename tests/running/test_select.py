"""Which questions a run asks: filters, order, shards, groups, and -k expressions."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.names import MHA, SDPA, SDPA_VJP
from conformance.running.expression import parse
from conformance.running.messages import Hello, Question
from conformance.running.select import Selection, in_profile, parse_shard, select
from conformance.vectors.case import Case

HELLO = Hello("x", None, ("float64", "float32"), ("mask",), (SDPA,), "eager")


@pytest.fixture
def cases(make_case: Callable[..., Case]) -> list[Case]:
    return [
        make_case("attention/plain"),
        make_case("attention/half", dtypes=("float16",), covers=("ATT-10",)),
        make_case("mask/plain", features=("mask",), covers=("MASK-1",)),
        make_case("mask/softcap", features=("mask", "softcap")),
        make_case("projection/plain", operation=MHA),
    ]


def chosen(cases: list[Case], hello: Hello = HELLO, **selection: Any) -> list[Question]:
    return select(cases, hello, "eager", Selection(**selection), "x")


def names(questions: list[Question]) -> list[str]:
    return [f"{q.case.id} {q.dtype}" for q in questions]


@pytest.mark.covers("CONF-3")
def test_everything_in_order(cases: list[Case]) -> None:
    assert names(chosen(cases)) == [
        f"{case} {dtype}"
        for case in ("attention/plain", "mask/plain", "mask/softcap", "projection/plain")
        for dtype in ("float64", "float32")
    ]


@pytest.mark.covers("CONF-4")
def test_unclaimed_is_listed(cases: list[Case]) -> None:
    reasons = {question.case.id: question.unclaimed for question in chosen(cases)}
    assert reasons == {
        "attention/plain": "",
        "mask/plain": "",
        "mask/softcap": "does not support softcap",
        "projection/plain": f"does not support {MHA}",
    }


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        ({"operation": MHA}, ["projection/plain"]),
        ({"features": ("softcap",)}, ["mask/softcap"]),
        ({"features": ("softcap", "mask")}, ["mask/plain", "mask/softcap"]),
        ({"profile": "core"}, ["attention/plain", "projection/plain"]),
        ({"profile": "encoder"}, ["attention/plain", "mask/plain", "projection/plain"]),
        ({"expression": "mask and not softcap"}, ["mask/plain"]),
        ({"expression": "MASK-1"}, ["mask/plain"]),
    ],
)
def test_filters(cases: list[Case], selection: Any, ids: list[str]) -> None:
    assert [question.case.id for question in chosen(cases, dtypes=("float32",), **selection)] == ids


def test_a_requirement_is_matched_whole(cases: list[Case]) -> None:
    with pytest.raises(UsageError, match="no case is left to run by -k ATT-10"):
        chosen(cases, expression="ATT-10")  # the case has no row in these dtypes; ATT-1 must not match it
    assert names(chosen(cases, expression="ATT-1 and float32 and plain and attention")) == [
        "attention/plain float32"
    ]


def test_shards_are_disjoint_and_complete(cases: list[Case]) -> None:
    parts = [names(chosen(cases, shard=(part, 3))) for part in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names(chosen(cases)))
    assert [len(part) for part in parts] == [3, 3, 2]


def test_isolated_dtypes_come_together(make_case: Callable[..., Case]) -> None:
    hello = Hello("x", None, ("float64", "float32"), (), (SDPA,), "eager", isolate=("float64",))
    bias = {name: np.ones((2, 3, 3), np.float32) for name in ("query", "key", "value", "attn_bias")}
    cases = [
        make_case("a/a"),
        make_case("a/b", inputs=bias, dtype_of={"attn_bias": "float64"}),
        make_case("a/c"),
    ]
    assert names(chosen(cases, hello)) == [
        "a/a float32", "a/c float32", "a/a float64", "a/b float64", "a/b float32", "a/c float64",
    ]  # fmt: skip


def test_a_dtype_that_is_not_claimed_is_refused(cases: list[Case]) -> None:
    with pytest.raises(UsageError, match="x does not support float16; it supports float64, float32"):
        chosen(cases, dtypes=("float16",))


def test_narrowed() -> None:
    assert not Selection(profile="core", operation=SDPA, dtypes=("float32",)).narrowed
    assert all(
        Selection(**part).narrowed  # type: ignore[arg-type]
        for part in ({"expression": "x"}, {"features": ("mask",)}, {"shard": (1, 1)})
    )


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"profile": "encode"}, "unknown profile 'encode'; did you mean 'encoder'?"),
        (
            {"profile": "xyz"},
            "unknown profile 'xyz'; known are core, encoder, decoder, serving, training, full",
        ),
        ({"operation": "attention"}, "unknown operation 'attention'"),
        ({"dtypes": ("float33",)}, "unknown dtype 'float33'; did you mean 'float32'?"),
        ({"features": ("masks",)}, "unknown feature 'masks'; did you mean 'mask'?"),
        ({"shard": (0, 2)}, "there is no shard 0/2"),
        ({"shard": (3, 2)}, "there is no shard 3/2"),
        ({"expression": "mask and"}, "-k expression 'mask and' cannot be read at its end"),
    ],
)
def test_names_that_are_unknown(selection: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Selection(**selection)


@pytest.mark.parametrize("text", ["", "1", "1/", "a/b", "-1/2", "1/2/3"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="not of the form I/N"):
        parse_shard(text)
    assert parse_shard("2/3") == (2, 3)


def test_gradients_belong_to_training_and_full() -> None:
    assert [in_profile(SDPA_VJP, (), profile) for profile in ("core", "encoder", "training", "full")] == [
        False, False, True, True,
    ]  # fmt: skip
    assert in_profile(SDPA, (), "training")
    assert not in_profile(SDPA, ("validation",), "full")
    assert in_profile(SDPA_VJP, ("mask",), "training")
    assert not in_profile(SDPA, ("mask",), "training")


def test_what_has_a_dtype_of_its_own_is_held_by_a_target_of_just_those(
    make_case: Callable[..., Case],
) -> None:
    case = make_case(dtype_of={"query": "float64", "key": "float32"})
    assert names(chosen([case])) == ["core/plain float64", "core/plain float32"]
    with pytest.raises(UsageError, match="no case is left"):
        chosen([case], Hello("x", None, ("float32",), (), (SDPA,), "eager"))


def test_a_reduced_policy_is_of_float32_alone(make_case: Callable[..., Case]) -> None:
    case = make_case()
    assert [case.judged(dtype, "tf32") for dtype in ("float64", "float32", "float16")] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("a", True), ("z", False), ("not z", True), ("a and z", False), ("a or z", True),
        ("not a or b", True), ("not (a or b)", False), ("z and z or a", True), ("a or z and z", True),
        ("(a)", True), ("not not a", True), ("((a) and (not z))", True),
    ],
)  # fmt: skip
def test_expressions(text: str, true: bool) -> None:
    assert parse(text)(lambda word: word in ("a", "b")) is true


@pytest.mark.parametrize("text", ["", "and", "a b", "(a", "a)", "not", "a or", "()", "a and or b", "("])
def test_expressions_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse(text)


def test_expressions_may_be_wide_but_not_deep() -> None:
    assert parse(" or ".join(["(z)", "not z"] * 60))(lambda word: False)
    for text in ("not " * 60 + "a", "(" * 60 + "a" + ")" * 60):
        with pytest.raises(UsageError, match="cannot be read"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [("a and )", "at ')'"), ("or a", "at 'or'"), ("not and", "at 'and'"), ("(a", "at its end")],
)
def test_where_an_expression_cannot_be_read(text: str, place: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{text!r} cannot be read {place};")):
        parse(text)
