"""Messages of the line protocol: there and back, and refused where they are not of it."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jsonschema import Draft202012Validator

from conformance.dtypes import NUMPY_DTYPES
from conformance.errors import UsageError
from conformance.names import DTYPES, FEATURES, OPERANDS, OPERATIONS, OPTIONS, POLICIES, SERVING_OPERANDS
from conformance.resources import schema, spec_directory
from conformance.running.messages import Answer, Question
from conformance.running.protocol import (
    ProtocolError,
    answer_message,
    check,
    decode,
    decode_array,
    encode,
    encode_array,
    parse_answer,
    parse_hello,
    run_message,
    start_message,
)
from conformance.running.signature import GRADIENT
from conformance.running.worker import serve
from conformance.vectors.case import Case

HELLO = {
    "name": "x",
    "version": None,
    "dtypes": ["float32", "float64"],
    "features": ["mask"],
    "operations": ["scaled_dot_product_attention"],
    "accuracy": "eager",
}


def test_the_schema_names_what_the_suite_names() -> None:
    definitions = schema("protocol")["$defs"]
    Draft202012Validator.check_schema(schema("protocol"))
    assert definitions["dtype"]["enum"] == list(NUMPY_DTYPES)
    assert definitions["floating"]["enum"] == list(DTYPES)
    assert definitions["operation"]["enum"] == list(OPERATIONS)
    assert definitions["feature"]["enum"] == list(FEATURES)
    others = {GRADIENT, "grad_lse", "mask", "attn_bias", "q_offset", "kv_lengths", "lses", *SERVING_OPERANDS}
    integers = {"q_segments", "kv_segments", "q_starts", "kv_starts", "page_table", "slots"}
    assert set(definitions["operand"]["enum"]) == {*OPERANDS, *others, *integers}
    assert definitions["run"]["properties"]["options"]["propertyNames"]["enum"] == [*OPTIONS, "value_dim"]
    assert definitions["started"]["properties"]["accuracy"]["enum"] == list(POLICIES)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@given(data=st.data())
@pytest.mark.covers("PROTO-3")
def test_arrays_there_and_back(dtype: str, data: st.DataObject) -> None:
    shape = data.draw(arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
    size = int(np.prod(shape)) * NUMPY_DTYPES[dtype].itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype == "bool":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, NUMPY_DTYPES[dtype]).reshape(shape)
    back = decode_array("x", json.loads(encode(encode_array(array))))
    assert (back.shape, back.dtype, back.tobytes()) == (array.shape, array.dtype, array.tobytes())


@pytest.mark.covers("PROTO-3")
def test_arrays_are_little_endian_in_c_order() -> None:
    array = np.array([[1, 2], [3, 4]], ">i8").T
    assert decode_array("x", encode_array(array)).tolist() == [[1, 3], [2, 4]]
    assert encode_array(np.float32(1.0)[...]) == {"dtype": "float32", "shape": [], "data": "AACAPw=="}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"dtype": "float32", "shape": [2], "data": "AAAA"},
            "x has 3 bytes of data, wanted 8 for float32 of shape",
        ),
        *(
            ({"dtype": "float32", "shape": shape, "data": "AAAAAAAAAAA="}, message)
            for shape, message in (
                ([1.0, 2.0], "the shape of x has the size 1.0"),
                ([True, 2], "the shape of x has the size True"),
                (["2"], "the shape of x has the size '2'"),
                ([-2], "the shape of x has the size -2"),
                ([2, *[1] * 69], "x has 70 axes, which is more than 64"),
                ([2**62, 2**62], "x has 8 bytes of data, wanted "),
            )
        ),
        ({"dtype": "float32", "shape": [0, 10**30], "data": ""}, "the shape of x has the size 1000"),
        ({"dtype": "float32", "shape": [0, 2**62, 2**62], "data": ""}, "x of shape .* cannot be an array"),
        ({"dtype": "float32", "shape": [1], "data": "AAAAA"}, "the data of x is not base64"),
        ({"dtype": "float32", "shape": [1], "data": "AA AA AA=="}, "the data of x is not base64"),
        ({"dtype": "float32", "shape": [1], "data": "\u00e9"}, "the data of x is not base64"),
    ],
)
@pytest.mark.covers("PROTO-3")
def test_data_that_does_not_fit(entry: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_array("x", entry)


def test_dtypes_that_the_suite_does_not_know() -> None:
    answer = Answer("outputs", outputs={"output": np.zeros(2, np.complex64)})
    assert answer_message("a/b", answer) == {
        "id": "a/b",
        "error": "output has dtype complex64, which the suite does not know (DTYPE-1)",
        "raised": False,
    }


def test_run_message(make_case: Callable[..., Case]) -> None:
    case = make_case(options={"window": [1, None]}, memory={"key": "reversed"}, repeat=2)
    message = check(json.loads(encode(run_message(Question(case, "bfloat16")))), "run")
    assert list(message) == ["cmd", "id", "operation", "inputs", "options", "memory", "repeat"]
    assert message["inputs"]["key"]["dtype"] == "bfloat16"
    assert "memory" not in run_message(Question(make_case(), "float32"))


@pytest.mark.parametrize("kind", ["outputs", "unsupported", "error", "wrong"])
@pytest.mark.covers("PROTO-4")
def test_answers_there_and_back(kind: Any) -> None:
    outputs = {"output": np.ones(2, np.float32)} if kind == "outputs" else {}
    answer = Answer(kind, "" if outputs else "why", outputs)
    line = encode(answer_message("a/b", answer))
    check(json.loads(line), "answer")
    back = parse_answer(line, "a/b")
    assert (back.kind, back.message) == (answer.kind, answer.message)
    assert {name: array.tolist() for name, array in back.outputs.items()} == {
        name: array.tolist() for name, array in outputs.items()
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b"{",
        b"\xff",
        b"3",
        b'{"id": "a/b"}',
        b'{"id": 1, "error": "x"}',
        b'{"id": "a/b", "outputs": {"output": [1, 2]}}',
        b'{"id": "a/b", "outputs": {"output": {"dtype": "complex64", "shape": [], "data": ""}}}',
        b'{"id": "a/b", "outputs": {}, "seconds": 3}',
        b'{"id": "b/a", "error": "x"}',
        b"[" * 100000,
    ],
)
@pytest.mark.covers("PROTO-1", "PROTO-4", "PROTO-5")
def test_lines_that_are_no_answers(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_answer(line, "a/b")


@pytest.mark.covers("PROTO-5")
def test_unknown_fields_are_named() -> None:
    with pytest.raises(ProtocolError, match="'sede' was unexpected"):
        decode(b'{"cmd": "start", "protocol": 1, "sede": 3}', "start")


@pytest.mark.covers("PROTO-2")
def test_hello() -> None:
    hello = parse_hello(json.dumps(HELLO).encode(), "x")
    assert hello.dtypes == ("float64", "float32"), "in the suite's order"
    assert hello.isolate == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": ["sofcap"]}, "'sofcap'; did you mean 'softcap'"),
        ({"dtypes": ["floot32"]}, "'floot32'; did you mean 'float32'"),
        ({"operations": ["multi_head_attn"]}, "did you mean 'multi_head_attention'"),
        ({"accuracy": "fuse"}, "did you mean 'fused'"),
        ({"name": 3}, "name: 3 is not of type 'string'"),
        ({"dtypes": 3}, "dtypes: 3 is not of type 'array'"),
        ({"surprise": 1}, "'surprise' was unexpected"),
        ({"error": "no GPU\nat all"}, "^x answered|'dtypes'|unexpected"),
    ],
)
@pytest.mark.covers("PROTO-2", "PROTO-5")
def test_hellos_that_are_refused(change: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_hello(json.dumps({**HELLO, **change}).encode(), "x")


def served(source: str, *messages: Any) -> list[Any]:
    lines = b"".join(m if isinstance(m, bytes) else encode(m) for m in messages)
    answers = io.BytesIO()
    serve(io.BytesIO(lines), answers, source, None, None)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


@pytest.mark.covers("PROTO-1", "PROTO-5", "PROTO-7")
def test_worker_serves(targets: Path, make_case: Callable[..., Case]) -> None:
    question = run_message(Question(make_case(), "float32"))
    hello, first, second, third = served(
        f"{targets}:good",
        start_message(),
        question,
        {**question, "sede": 1},
        {"cmd": "jump"},
        {"cmd": "stop"},
        question,
    )
    check(hello, "started")
    assert set(first) == {"id", "outputs"}
    assert "'sede' was unexpected" in second["error"]
    assert third["error"] == "message refused: cmd: wanted run or stop, got 'jump'"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"cmd": "start", "protocol": 2}, {"error": "protocol 2 is unknown: this worker speaks 1"}),
        (
            {"cmd": "run"},
            {"id": "", "error": "message refused: cmd: wanted start, got 'run'", "raised": False},
        ),
        (b"[]\n", {"id": "", "error": "message refused: cmd: wanted start, got None", "raised": False}),
        (b"hello\n", {"id": "", "error": "message refused: 'hello' is not a line of JSON", "raised": False}),
    ],
)
@pytest.mark.covers("PROTO-5")
def test_worker_refuses(targets: Path, message: Any, error: Any) -> None:
    assert served(f"{targets}:good", message) == [error]


def test_worker_cannot_load(targets: Path) -> None:
    (refusal,) = served(f"{targets}:nothing", start_message())
    check(refusal, "refused")


# The page and the schema

PAGE = (spec_directory() / "protocol.md").read_text("utf-8")
KINDS = {
    "array": ("## Arrays", "## start"),
    "start": ("## start", "## run"),
    "started": ("## start", "## run"),
    "refused": ("## start", "## run"),
    "run": ("## run", "## stop"),
    "outputs": ("## run", "## stop"),
    "unsupported": ("## run", "## stop"),
    "error": ("## run", "## stop"),
    "stop": ("## stop", "## What the suite"),
}
"""Message -> the part of the page that describes it."""


def part(kind: str) -> str:
    first, last = KINDS[kind]
    return PAGE[PAGE.index(first) : PAGE.index(last)]


def examples(text: str) -> list[Any]:
    """The JSON values of the blocks of code."""
    found: list[Any] = []
    for block in re.findall(r"^```\n(\{.*?)^```", text, re.MULTILINE | re.DOTALL):
        rest = block.strip()
        while rest:
            value, end = json.JSONDecoder().raw_decode(rest)
            found.append(value)
            rest = rest[end:].strip()
    return found


def tables(text: str) -> set[str]:
    """The fields that the tables under `field` name."""
    found: set[str] = set()
    for table in re.findall(r"^\| field \|.*?\n\n", text, re.MULTILINE | re.DOTALL):
        found |= set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    return found


def fields(kind: str) -> dict[str, Any]:
    properties: dict[str, Any] = schema("protocol")["$defs"][kind]["properties"]
    return properties


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_names_every_field_of_the_schema(kind: str) -> None:
    named = tables(part(kind)) | {key for example in examples(part(kind)) for key in example}
    assert set(fields(kind)) <= named


def test_the_page_names_no_other_field() -> None:
    for heading in ("## Arrays", "## start", "## run"):
        those = [kind for kind, (first, _) in KINDS.items() if first == heading]
        assert tables(part(those[0])) <= {field for kind in those for field in fields(kind)}, heading
        assert tables(part(those[0]))


def test_every_kind_of_message_is_on_the_page() -> None:
    definitions = schema("protocol")["$defs"]
    messages = {name for name, entry in definitions.items() if "properties" in entry}
    assert messages == set(KINDS)


def test_optional_fields_are_called_optional() -> None:
    for kind in ("started", "run", "error"):
        entry = schema("protocol")["$defs"][kind]
        for field in entry["properties"]:
            said = re.findall(rf"^\| `{field}` \| (.*)", part(kind), re.MULTILINE)
            optional = field not in entry["required"]
            assert all(content.startswith("optional") == optional for content in said), field


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.covers("PROTO-2", "PROTO-3", "PROTO-4")
def test_every_kind_of_message_has_an_example_that_the_schema_accepts(kind: str) -> None:
    """Each example is a message of some kind of its part, and each kind has one."""
    shown = examples(part(kind))
    valid = [example for example in shown if _is(kind, example)]
    assert valid
    neighbours = [name for name, part_of in KINDS.items() if part_of == KINDS[kind]]
    assert all(any(_is(name, example) for name in neighbours) for example in shown)


def _is(kind: str, message: Any) -> bool:
    try:
        check(message, kind)
    except ProtocolError:
        return False
    return True
