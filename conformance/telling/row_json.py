"""A row of a report as JSON values, there and back."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from conformance.judging.verdict import Diagnosis, Got, Known, Row, Worst

EXPLORED = ("reduced", "fails_if", "replay")
"""Fields that only a failure of an exploration has."""


def row_to_json(row: Row) -> dict[str, Any]:
    """A row in the order of the contract's fields."""
    worst = row.worst
    return {
        "case": row.case,
        "operation": row.operation,
        "dtype": row.dtype,
        "verdict": row.verdict,
        "covers": list(row.covers),
        "features": list(row.features),
        "error_over_bound": number_to_json(row.error_over_bound),
        "rms_over_sigma": number_to_json(row.rms_over_sigma),
        "grade": row.grade,
        "message": row.message,
        "worst": None
        if worst is None
        else {
            "output": worst.output,
            "index": list(worst.index),
            "got": number_to_json(worst.got),
            "expected": number_to_json(worst.expected),
            "allowed": number_to_json(worst.allowed),
        },
        "diagnosis": [asdict(each) for each in row.diagnosis],
        "seconds": round(row.seconds, 6),
        **got_to_json(row),
        **({"known": asdict(row.known)} if row.known else {}),
        **{name: getattr(row, name) for name in EXPLORED if getattr(row, name)},
    }


def got_to_json(row: Row) -> dict[str, Any]:
    """The fields that only a failing row has: what it returned, or why that is left out."""
    got = {g.output: {"dtype": g.dtype, "shape": list(g.shape), "data": g.data} for g in row.got}
    return {
        **({"got": got} if got else {}),
        **({"got_left_out": row.got_left_out} if row.got_left_out else {}),
    }


def row_from_json(data: Mapping[str, Any]) -> Row:
    """The row of JSON values."""
    worst = data["worst"]
    return Row(
        case=data["case"],
        operation=data["operation"],
        dtype=data["dtype"],
        verdict=data["verdict"],
        covers=tuple(data["covers"]),
        features=tuple(data["features"]),
        message=data["message"],
        error_over_bound=number_from_json(data["error_over_bound"]),
        rms_over_sigma=number_from_json(data["rms_over_sigma"]),
        grade=data["grade"],
        worst=worst
        and Worst(
            output=worst["output"],
            index=tuple(worst["index"]),
            got=float(worst["got"]),
            expected=float(worst["expected"]),
            allowed=float(worst["allowed"]),
        ),
        seconds=float(data["seconds"]),
        got=tuple(
            Got(name, each["dtype"], tuple(each["shape"]), each["data"])
            for name, each in data.get("got", {}).items()
        ),
        got_left_out=data.get("got_left_out", ""),
        diagnosis=tuple(Diagnosis(**each) for each in data["diagnosis"]),
        known=Known(**data["known"]) if "known" in data else None,
        **{name: data.get(name, "") for name in EXPLORED},
    )


def number_to_json(value: float | None) -> float | str | None:
    """A number; the non-finite ones, which JSON lacks, as strings that float() and Number() read."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_from_json(value: float | str | None) -> float | None:
    """The number again."""
    return None if value is None else float(value)
