"""Files, JSON and schemas from elsewhere: of bounded size, with one meaning, checked in bounded time."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend

MOST_BYTES = 2**26
"""Of a file of vectors or a report: ten times what the largest has, and less than fills a machine."""


class TooLargeError(ValueError):
    """A file that is larger than anything of its kind."""


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file, be it a pipe or a device that never ends.

    Raises:
        OSError: it cannot be read.
        TooLargeError: it has more bytes than `most`.
    """
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise TooLargeError(f"it has more than {most} bytes")
    return raw


def strict_json(raw: bytes | str) -> Any:
    """The value of JSON that every reader takes alike: no name twice, no NaN, no number beyond a float's range.

    Raises:
        ValueError: it is not such JSON, or nested too deep.
    """
    try:
        return json.loads(raw, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name[:60]!r} stands twice in one object")
        found[name] = value
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:60]} is beyond the range of a float")
    return number


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    r"""`$` is the end, as in ECMAScript: in Python a line break may follow it."""
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


Validator: Any = extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]
"""JSON Schema with its own meaning of patterns."""


def flaw(validator: Any, data: Any) -> str:
    """The first thing that is wrong, with its place; empty if nothing is.

    It looks no further: a document with a million faults would take hours, and in a list of which an item has
    the wrong type, nothing need be found out about every pair of items.
    """
    error = best_match(next(([error] for error in validator.iter_errors(data)), []))
    if error is None:
        return ""
    where = error.json_path.removeprefix("$").removeprefix(".")
    return f"{where[:100]}: {error.message:.200}" if where else f"{error.message:.200}"
