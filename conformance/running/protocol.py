"""The line protocol: messages of spec/schema/protocol.json to and from bytes."""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from conformance.accepting import Check, accepting
from conformance.dtypes import NUMPY_DTYPES, dtype_name
from conformance.errors import UsageError
from conformance.names import DTYPES, FEATURES, OPERATIONS, POLICIES
from conformance.reading import flaw, strict_json, utf8, validator
from conformance.resources import schema
from conformance.running.log_base import BINARY, NATURAL
from conformance.running.messages import MOST_ENTRIES, TOP_LEFT, Answer, Hello, Question
from conformance.running.suggestions import known
from conformance.running.text_limits import first_line, shorten
from conformance.vectors.case import Array

VERSION = 1

MOST_VALUES = 2**20
"""How many values an answer may be made of: each takes a hundred bytes, and no answer has a thousand."""
MOST_AXES = 64
"""NumPy has no arrays of more axes."""

NAMED = {
    "dtypes": DTYPES,
    "features": FEATURES,
    "operations": OPERATIONS,
    "accuracy": POLICIES,
    "isolate": DTYPES,
    "assumed": FEATURES,
}
"""Fields of the start reply that hold names, and which names there are."""

WRITE_ONE = (
    "; it has to answer each line with one line of JSON, and to flush it: "
    "`mha-conformance init FILE.mjs --node` writes a program that does, spec/protocol.md says the rest"
)
"""What to do about a program that does not speak the protocol."""

Message = dict[str, Any]


class ProtocolError(Exception):
    """A line that is no message of the protocol; the text says what is wrong with it."""


# Lines


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as one line."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes, kind: str) -> Message:
    """The message of a line, checked against the schema's definition of its kind.

    Raises:
        ProtocolError: it is not JSON, or has a missing, unknown or wrong field.
    """
    return check(loads(line), kind)


def loads(line: bytes) -> Any:
    """The JSON value of a line, of which there are not too many."""
    if line.count(b",") > MOST_VALUES:
        raise ProtocolError(f"a line of more than {MOST_VALUES} values is not a message")
    try:
        return strict_json(line)
    except (ValueError, MemoryError) as error:
        told = shorten(line[:4096].decode("utf-8", "replace"))
        raise ProtocolError(f"{told!r} is not a line of JSON{_encoded(line)}") from error


def _encoded(line: bytes) -> str:
    """Why bytes are no text, with a colon before it; empty if they are."""
    try:
        utf8(line)
    except ValueError as error:
        return f": {error}"
    return ""


def check(message: Any, kind: str) -> Message:
    """The message, if it is one of its kind."""
    if not _accepts(kind)(message):
        raise ProtocolError(shorten(flaw(_validator(kind), message)))
    checked: Message = message
    return checked


@cache
def _accepts(kind: str) -> Check:
    """Whether a message is one of its kind; what is wrong with one that is not is the validator's to say."""
    return accepting({"$ref": f"#/$defs/{kind}"}, schema("protocol"))


@cache
def _validator(kind: str) -> Any:
    return validator({"$ref": f"#/$defs/{kind}", "$defs": schema("protocol")["$defs"]})


# Arrays


def encode_array(array: Array) -> Message:
    """An array as dtype name, shape and base64 of its little-endian bytes in C order."""
    dtype = dtype_name(array.dtype)
    if dtype not in NUMPY_DTYPES:
        raise ProtocolError(f"has dtype {dtype}, which the suite does not know (DTYPE-1)")
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return {"dtype": dtype, "shape": list(array.shape), "data": base64.b64encode(little.tobytes()).decode()}


def decode_array(name: str, entry: Mapping[str, Any]) -> Array:
    """The array of an encoded one; writable.

    Raises:
        ProtocolError: the shape is none, or the data is not base64, or not as long as dtype and shape say.
    """
    dtype, shape, name = NUMPY_DTYPES[entry["dtype"]], _shape(name, entry["shape"]), shorten(name, 60)
    try:
        data = bytearray(base64.b64decode(entry["data"], validate=True))
    except (binascii.Error, ValueError, MemoryError) as error:
        raise ProtocolError(f"the data of {name} is not base64: {error}") from error
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise ProtocolError(
            f"{name} has {len(data)} bytes of data, wanted {wanted} for {entry['dtype']} of shape {_told(shape)}"
        )
    try:
        array: Array = np.frombuffer(data, dtype=dtype.newbyteorder("<")).reshape(shape)
        return array.astype(dtype, copy=False)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ProtocolError(
            f"{name} of shape {_told(shape)} cannot be an array: {first_line(error)}"
        ) from error


def _shape(name: str, sizes: Sequence[Any]) -> tuple[int, ...]:
    """The sizes of the axes; JSON Schema takes 1.0 for an integer, and NumPy does not."""
    for size in sizes:
        if type(size) is not int or not 0 <= size < 2**63:
            raise ProtocolError(f"the shape of {shorten(name, 60)} has the size {shorten(repr(size), 60)}")
    if len(sizes) > MOST_AXES:
        raise ProtocolError(f"{shorten(name, 60)} has {len(sizes)} axes, which is more than {MOST_AXES}")
    return tuple(sizes)


def _told(shape: tuple[int, ...]) -> str:
    return shorten(str(shape), 100)


# Messages


def start_message() -> Message:
    """The first message."""
    return {"cmd": "start", "protocol": VERSION}


def run_message(question: Question) -> Message:
    """What asks a question."""
    case = question.case
    message: Message = {
        "cmd": "run",
        "id": case.id,
        "operation": case.operation,
        "inputs": {name: encode_array(array) for name, array in case.operands(question.dtype).items()},
        "options": dict(case.options),
    }
    if case.memory:
        message["memory"] = dict(case.memory)
    if case.repeat > 1:
        message["repeat"] = case.repeat
    return message


def hello_message(hello: Hello) -> Message:
    """What a Python target answers to the start."""
    optional: Message = {"features_of": {name: list(those) for name, those in hello.features_of.items()}}
    if hello.causal_alignment != TOP_LEFT:
        optional["causal_alignment"] = hello.causal_alignment
    if hello.lse_base == BINARY:
        optional["lse_base"] = 2
    return {
        **{name: value for name, value in optional.items() if value},
        "name": hello.name,
        "version": hello.version,
        "dtypes": list(hello.dtypes),
        "features": list(hello.features),
        "operations": list(hello.operations),
        "accuracy": hello.accuracy,
        "isolate": list(hello.isolate),
        "assumed": list(hello.assumed),
        "environment": dict(hello.environment),
        "notes": list(hello.notes),
    }


def parse_hello(line: bytes, source: str) -> Hello:
    """The target's description of itself.

    Raises:
        UsageError: the target refuses to start, or does not answer as the protocol says.
    """
    try:
        message = loads(line)
        if isinstance(message, dict):
            if "error" in message:
                raise UsageError(shorten(check(message, "refused")["error"], 1000))
            for field, names in NAMED.items():
                check_names(field, message.get(field), names, source)
        message = check(message, "started")
    except ProtocolError as error:
        raise UsageError(f"{source} sent an invalid reply to `start`: {error}{WRITE_ONE}") from error
    return Hello(
        name=message["name"],
        version=message["version"],
        dtypes=in_order(message["dtypes"], DTYPES),
        features=in_order(message["features"], FEATURES),
        operations=in_order(message["operations"], OPERATIONS),
        accuracy=message["accuracy"],
        isolate=in_order(message.get("isolate", ()), DTYPES),
        assumed=in_order(message.get("assumed", ()), FEATURES),
        environment=message.get("environment", {}),
        notes=tuple(message.get("notes", ())),
        features_of={
            name: in_order(those, FEATURES) for name, those in message.get("features_of", {}).items()
        },
        causal_alignment=message.get("causal_alignment", TOP_LEFT),
        lse_base=str(message.get("lse_base", NATURAL)),
    )


def check_names(field: str, given: Any, names: Sequence[str], source: str) -> None:
    """Refuses an unknown name with the nearest known one; the schema refuses what are no names."""
    for name in given if isinstance(given, list) else [given]:
        if isinstance(name, str):
            known(f"name in the {field} of {source}:", name, names)


def in_order(given: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The given names, once each, in the suite's order."""
    return tuple(name for name in names if name in given)


def answer_message(case_id: str, answer: Answer) -> Message:
    """What tells an answer."""
    if answer.kind == "outputs":
        outputs = {}
        for name, array in answer.outputs.items():
            try:
                outputs[name] = encode_array(array)
            except ProtocolError as error:
                return {"id": case_id, "error": f"{name} {error}", "raised": False}
        return {"id": case_id, "outputs": outputs}
    if answer.kind == "unsupported":
        return {"id": case_id, "unsupported": answer.message}
    return {"id": case_id, "error": answer.message, "raised": answer.kind == "error"}


def parse_answer(line: bytes, case_id: str) -> Answer:
    """The answer to one question.

    Raises:
        ProtocolError: the line is no answer, or the answer to something else.
    """
    message = loads(line)
    kinds = [kind for kind in ("outputs", "unsupported") if isinstance(message, dict) and kind in message]
    message = check(message, kinds[0] if kinds else "error")
    if message["id"] != case_id:
        raise ProtocolError(f"id: got {shorten(message['id'])!r}, wanted {case_id!r}")
    if "outputs" in message:
        if len(message["outputs"]) > MOST_ENTRIES:
            raise ProtocolError(
                f"outputs: {len(message['outputs'])} of them, which is more than {MOST_ENTRIES}"
            )
        return Answer("outputs", outputs={n: decode_array(n, a) for n, a in message["outputs"].items()})
    if "unsupported" in message:
        return Answer("unsupported", message["unsupported"])
    return Answer("error" if message.get("raised", True) else "wrong", message["error"])
