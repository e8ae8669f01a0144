"""What a file of a case says (spec/schema/case.json), and the file of a stored case."""

from functools import cache
from typing import Any

from conformance.reading import flaw, validator
from conformance.resources import schema
from conformance.running.protocol import encode_array
from conformance.vectors.case import Case

CASE_VERSION = 1
MOST_CALLS = 2
"""How often a file can ask for its call."""


def call_of(case: Case, dtype: str) -> dict[str, Any]:
    """What a file says of the call itself."""
    rows = next((golden.rows for golden in case.expected.values() if golden.rows is not None), None)
    return {
        "operation": case.operation,
        "dtype": dtype,
        "covers": list(case.covers),
        "options": dict(case.options),
        "inputs": {name: encode_array(array) for name, array in case.operands(dtype).items()},
        "memory": dict(case.memory),
        "rows": None if rows is None else list(rows),
    }


def stored_file(case: Case, dtype: str) -> dict[str, Any] | None:
    """The file of a stored case in one dtype.

    None where a file cannot hold it: a call that must be refused has no expected values to derive, and the
    operands of a file have one dtype.
    """
    if case.raises or case.dtype_of or case.repeat > MOST_CALLS:
        return None
    found = {
        "case_version": CASE_VERSION,
        "id": case.id,
        "note": case.note,
        **call_of(case, dtype),
        "before": {} if case.repeat == MOST_CALLS else None,
    }
    return None if flaw(case_validator(), found) else found


@cache
def case_validator() -> Any:
    """What checks a file of a case."""
    return validator(schema("case"))
