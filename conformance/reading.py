"""Files, JSON and schemas from elsewhere: of bounded size, with one meaning, checked in bounded time."""

import codecs
import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

MOST_BYTES = 2**26
"""Of a file of vectors or a report: ten times what the largest has, and less than fills a machine."""


class TooLargeError(ValueError):
    """A file that is larger than anything of its kind."""


MARKS = {
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF32_LE: "UTF-32",  # which begins as UTF-16 does
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""The byte order marks."""
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file; a pipe that nobody writes to is not waited for.

    Raises:
        OSError: it cannot be read, or is no regular file.
        TooLargeError: it has more bytes than `most`.
    """
    _check_regular(path, path.stat().st_mode)  # a device is not even opened
    with open(path, "rb", opener=_at_once) as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        raw = file.read(most + 1)
    if len(raw) > most:
        raise TooLargeError(f"it has more than {most} bytes")
    return raw


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}; give a regular file", str(path))


def utf8(raw: bytes) -> str:
    """The text of bytes in UTF-8 without a byte order mark, which is the one encoding that is read.

    Raises:
        ValueError: they are something else.
    """
    for mark, name in MARKS.items():
        if raw.startswith(mark):
            raise ValueError(f"it starts with the byte order mark of {name}; write UTF-8 without one")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start} is not UTF-8 ({error.reason}); write UTF-8 without a byte order mark"
        ) from error
    if text.startswith("\0") or text[1:2] == "\0":
        raise ValueError("it looks like UTF-16 or UTF-32; write UTF-8 without a byte order mark")
    return text


def strict_json(raw: bytes) -> Any:
    """The value of JSON that every reader takes alike: UTF-8, no name twice, no NaN, no number beyond a float's range.

    Raises:
        ValueError: it is not such JSON, or nested too deep.
    """
    try:
        return json.loads(utf8(raw), object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name[:60]!r} appears twice in one object")
        found[name] = value
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:60]} is beyond the range of a float")
    return number


def validator(schema: Any) -> Any:
    """What checks documents by a JSON Schema, with its own meaning of patterns."""
    return _kind()(schema)


@cache
def _kind() -> Any:
    from jsonschema import Draft202012Validator  # takes as long to import as all that a short command needs
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import extend

    def matches(_: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
        r"""`$` is the end, as in ECMAScript: in Python a line break may follow it."""
        if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
            yield ValidationError(f"{value!r} does not match {pattern!r}")

    return extend(Draft202012Validator, {"pattern": matches})  # type: ignore[no-untyped-call]


def flaw(validator: Any, data: Any) -> str:
    """The first thing that is wrong, with its place; empty if nothing is.

    It looks no further: a document with a million faults would take hours, and in a list of which an item has
    the wrong type, nothing need be found out about every pair of items.
    """
    from jsonschema.exceptions import best_match

    error = best_match(next(([error] for error in validator.iter_errors(data)), []))
    if error is None:
        return ""
    where = error.json_path.removeprefix("$").removeprefix(".")
    return f"{where[:100]}: {error.message:.200}" if where else f"{error.message:.200}"
