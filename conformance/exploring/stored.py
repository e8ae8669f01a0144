"""What a file of a case says (spec/schema/case.json), and the file of a stored case."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.reading import flaw, validator
from conformance.resources import schema
from conformance.running.protocol import encode_array
from conformance.vectors.case import Case
from conformance.vectors.generate.draft import rows_of

CASE_VERSION = 1
MOST_CALLS = 2
"""How often a file can ask for its call."""
FIRST = "float32"
"""The dtype of the operands of a saved case, where the case is asked in it."""


def call_of(case: Case, dtype: str) -> dict[str, Any]:
    """What a file says of the call itself."""
    rows = rows_of(case)
    return {
        "operation": case.operation,
        "dtype": dtype,
        "covers": list(case.covers),
        "features": list(case.features),
        "options": dict(case.options),
        "inputs": {name: encode_array(array) for name, array in case.operands(dtype).items()},
        "memory": dict(case.memory),
        "rows": list(rows) if rows else None,  # none of a packed call: its rows are in no part
    }


class NoFileError(ValueError):
    """A stored case that no file can hold; the text says why."""


def stored_file(case: Case, dtype: str) -> dict[str, Any]:
    """The file of a stored case in one dtype.

    Raises:
        NoFileError: a file cannot hold it: a call that must be refused has no expected values to derive, and the
            operands of a file have one dtype.
    """
    if case.raises:
        raise NoFileError("it must be refused, and the call of a file has a result")
    if case.dtype_of:
        raise NoFileError(f"{', '.join(case.dtype_of)} has another dtype than the rest, and a file has one")
    if case.repeat > MOST_CALLS:
        raise NoFileError(
            f"its call is made {case.repeat} times, and that of a file at most {MOST_CALLS} times"
        )
    found = {
        "case_version": CASE_VERSION,
        "id": case.id,
        "note": case.note,
        **call_of(case, dtype),
        "before": {} if case.repeat == MOST_CALLS else None,
    }
    if reason := flaw(case_validator(), found):
        raise NoFileError(reason)
    return found


def save_stored(case: Case, path: Path) -> str:
    """Writes a stored case to a new file, and returns the dtype that its operands have there.

    Raises:
        UsageError: a file cannot hold it, is there already, or cannot be written.
    """
    dtype = FIRST if FIRST in case.dtypes else case.dtypes[0]
    try:
        text = file_text(stored_file(case, dtype))
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except NoFileError as error:
        raise UsageError(f"{case.id} cannot be saved: {error}") from error
    except FileExistsError as error:
        raise UsageError(f"{path} already exists; choose another name") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return dtype


def file_text(found: Mapping[str, Any]) -> str:
    """The text of a file."""
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


@cache
def case_validator() -> Any:
    """What checks a file of a case."""
    return validator(schema("case"))
