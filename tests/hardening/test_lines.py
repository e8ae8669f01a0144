"""The line protocol under fire: what the suite sends is of the schema, what it is sent becomes a verdict."""

import json
from typing import Any

import numpy as np
import pytest
from damage import damaged, texts, tried, values
from depth import DEEP, examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conformance.dtypes import NUMPY_DTYPES
from conformance.errors import UsageError
from conformance.judging.judge import judge
from conformance.names import DTYPES, FEATURES, OPERATIONS, POLICIES
from conformance.running import protocol
from conformance.running.messages import MOST_ENTRIES, Answer, Hello, Question
from conformance.running.protocol import (
    ProtocolError,
    answer_message,
    decode,
    encode,
    hello_message,
    parse_answer,
    parse_hello,
    run_message,
    start_message,
)
from conformance.running.variants import variant
from conformance.vectors.load import load_vectors

# What goes out


@pytest.mark.covers("PROTO-5")
def test_every_question_is_of_the_schema() -> None:
    assert decode(encode(start_message()), "start")
    for number, case in enumerate(load_vectors().cases[:: 1 if DEEP > 1 else 5]):
        dtype = case.dtypes[number % len(case.dtypes)]
        message = decode(encode(run_message(Question(case, dtype))), "run")
        assert (message["id"], message["options"]) == (case.id, case.options)
        if number % 10 == 0 and not case.raises:
            made = variant(case, f"1/{case.id}/{dtype}").case
            assert set(decode(encode(run_message(Question(made, dtype))), "run")["inputs"]) == set(
                case.inputs
            )


names = st.lists(texts, max_size=3).map(tuple)
hellos = st.builds(
    Hello,
    name=texts.filter(str.strip),
    version=st.none() | texts,
    dtypes=st.lists(st.sampled_from(DTYPES), unique=True).map(tuple),
    features=st.lists(st.sampled_from(FEATURES), unique=True).map(tuple),
    operations=st.lists(st.sampled_from(OPERATIONS), unique=True).map(tuple),
    accuracy=st.sampled_from(POLICIES),
    environment=st.dictionaries(texts, texts, max_size=3),
    notes=names,
)


@given(hello=hellos)
@examples(40)
@pytest.mark.covers("PROTO-2", "PROTO-5")
def test_every_start_reply_of_a_worker_is_of_the_schema(hello: Hello) -> None:
    line = encode(hello_message(hello))
    assert decode(line, "started")
    back = parse_hello(line, "x")
    assert (back.name, back.accuracy, set(back.dtypes)) == (hello.name, hello.accuracy, set(hello.dtypes))


dtypes = st.sampled_from(
    [*NUMPY_DTYPES.values(), np.dtype(np.complex64), np.dtype(np.uint8), np.dtype("M8[s]")]
)
answers = st.builds(
    Answer,
    kind=st.sampled_from(["outputs", "unsupported", "error", "wrong"]),
    message=texts,
    outputs=st.dictionaries(
        st.sampled_from(["output", "lse"]) | texts,
        st.builds(np.zeros, arrays.array_shapes(min_dims=0, min_side=0, max_side=2), dtypes),
        max_size=3,
    ),
)


@given(answer=answers)
@examples(60)
@pytest.mark.covers("PROTO-3", "PROTO-4", "PROTO-5")
def test_every_reply_of_a_worker_is_of_the_schema(answer: Answer) -> None:
    line = encode(answer_message("a/b", answer))
    assert b"\n" not in line[:-1]
    assert decode(line, "answer")
    back = parse_answer(line, "a/b")
    assert back.kind == answer.kind or any(
        array.dtype not in NUMPY_DTYPES.values() for array in answer.outputs.values()
    )


# What comes in

ENTRY = {"dtype": "float32", "shape": [2, 3, 4], "data": "AAAA" * 32}
REPLY = {
    "id": "core/plain",
    "outputs": {"output": ENTRY, "lse": {"dtype": "float32", "shape": [0], "data": ""}},
}
HELLO = hello_message(
    Hello("x", "1", ("float32",), ("mask",), OPERATIONS[:1], "eager", environment={"a": "1"})
)


def reply_lines() -> st.SearchStrategy[bytes]:
    """Damaged replies, any JSON, and any bytes."""
    documents = st.sampled_from([REPLY, HELLO, {"id": "core/plain", "error": "x", "raised": True}])
    return st.one_of(
        documents.flatmap(damaged).map(lambda text: text.encode("utf-8", "surrogatepass")),
        values.map(json.dumps).map(str.encode),
        st.binary(max_size=40),
    )


@given(line=reply_lines())
@examples(100)
@pytest.mark.covers("PROTO-1", "PROTO-4", "PROTO-5", "CONF-4")
def test_any_line_becomes_an_answer_that_can_be_judged(line: bytes, make_case: Any) -> None:
    answer, refused = tried(ProtocolError, parse_answer, line, "core/plain")
    if refused:
        return
    assert len(answer.message) <= 1003
    assert all(len(name) <= 63 for name in answer.outputs)
    if answer.kind == "outputs":
        found = judge(make_case(), "float32", "eager", answer.outputs)
        assert found.verdict == "fail", "nothing random is right"
        assert "\n" not in found.message


@given(line=reply_lines())
@examples(60)
@pytest.mark.covers("PROTO-2", "PROTO-5", "CONF-6")
def test_any_line_becomes_a_start_or_a_refusal(line: bytes) -> None:
    hello, refused = tried(UsageError, parse_hello, line, "x")
    if refused:
        return
    assert set(hello.dtypes) <= set(DTYPES)
    assert len(hello.name) <= 303


@pytest.mark.parametrize(
    "line",
    [b"[" + b"{}," * 2**21 + b"{}]", b"[" + b"0," * 2**21 + b"0]", b"{" + b'"":0,' * 2**21 + b"}"],
    ids=["objects", "numbers", "names"],
)
def test_a_line_that_would_fill_the_memory_is_not_even_parsed(line: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "strict_json", lambda line: pytest.fail("parsed"))
    with pytest.raises(ProtocolError, match="a line of more than 1048576 values is not a message"):
        parse_answer(line, "a/b")


def test_a_reply_that_can_be_read_in_two_ways_is_refused() -> None:
    line = json.dumps(REPLY).replace('{"id"', '{"id": "other", "id"').encode()
    with pytest.raises(ProtocolError, match="is not a line of JSON"):
        parse_answer(line, "core/plain")


@pytest.mark.parametrize("name", [" output", "output\n", "output\t ", "\u2003output", "output" + " " * 70])
@pytest.mark.covers("CONF-4")
def test_a_name_that_is_nearly_right_is_another_name(name: str, make_case: Any) -> None:
    case = make_case()
    right = case.expected["output"].hi.astype(np.float32)
    assert (
        judge(case, "float32", "eager", Answer("outputs", outputs={"output": right}).outputs).verdict
        == "pass"
    )
    for outputs in ({name: right}, {"output": right, name: right}, {"output": right + 1, name: right}):
        assert judge(case, "float32", "eager", Answer("outputs", outputs=outputs).outputs).verdict == "fail"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("output", "output"),
        ("query" * 12, "query" * 12),
        (" output", "' output'"),
        ("output\n", r"'output\n'"),
        ("query" * 13, f"'{'query' * 11}quer..."),
    ],
)
def test_a_name_that_is_told_otherwise_is_quoted(name: str, told: str) -> None:
    assert list(Answer("outputs", outputs={name: np.zeros(1)}).outputs) == [told]


def test_what_a_target_says_of_itself_is_cut() -> None:
    many = {f"{n}\n" + "e" * 400: "v" * 400 for n in range(MOST_ENTRIES + 8)}
    hello = Hello("n" * 400, "v" * 400, (), (), (), "eager", environment=many, notes=tuple(many))
    assert (hello.name, hello.version) == ("n" * 300 + "...", "v" * 300 + "...")
    assert list(hello.environment) == [
        f"{n} " + "e" * (299 - len(str(n))) + "..." for n in range(MOST_ENTRIES)
    ]
    assert set(hello.environment.values()) == {"v" * 300 + "..."}
    assert hello.notes == tuple(hello.environment)
    assert Hello("n", None, (), (), (), "eager").version is None


def test_more_outputs_than_any_operation_has() -> None:
    outputs = {f"o{n}": ENTRY for n in range(MOST_ENTRIES + 1)}
    with pytest.raises(ProtocolError, match="33 of them, which is more than 32"):
        parse_answer(json.dumps({"id": "a/b", "outputs": outputs}).encode(), "a/b")
