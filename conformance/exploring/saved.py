"""A call in a file of its own (spec/schema/case.json), which `explore` and `show` save and `run --case` reads."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.exploring.arrays import changed
from conformance.exploring.earlier import SAME, earlier
from conformance.exploring.needs import needs
from conformance.exploring.recipe import NUMBERS, Recipe
from conformance.exploring.said import held
from conformance.exploring.stored import CASE_VERSION, call_of, case_validator, file_text
from conformance.exploring.trial import Tried
from conformance.names import DTYPES, FEATURES
from conformance.oracle import Certified, UnjudgedError, certify
from conformance.reading import TooLargeError, flaw, read_bytes, strict_json
from conformance.running.protocol import ProtocolError, decode_array, encode_array
from conformance.running.suggestions import known
from conformance.vectors.case import Array, Case, held_in, lacking


def case_file(
    tried: Tried, name: str, fails_if: str, replay: str, source: str, policy: str, snippet: str
) -> dict[str, Any]:
    """What a file says of a failing call."""
    case, recipe, row = tried.case, tried.recipe, tried.row
    assert case is not None
    assert row is not None
    found: dict[str, Any] = {
        "case_version": CASE_VERSION,
        "id": name,
        "note": f"Fails if {fails_if}.",
        **call_of(case, recipe.dtype),
        "features": [name for name in FEATURES if name in case.features or name in needs(recipe)],
        "before": _before(recipe, case),
        "earlier": _earlier(recipe, case),
        "target": source,
        "accuracy": policy,
        "verdict": row.verdict,
        "message": row.message,
        "fails_if": fails_if,
        "replay": replay,
        "snippet": snippet.splitlines(),
    }
    return found


def _before(recipe: Recipe, case: Case) -> dict[str, Any] | None:
    """The operands of the call that is made before, where they are others; none of them: the same call."""
    if not recipe.again:
        return None
    if recipe.again == SAME:
        return {}
    if recipe.again not in NUMBERS:
        return None
    given = case.operands(recipe.dtype)
    return {
        recipe.again: encode_array(changed(recipe, given)[recipe.again].astype(given[recipe.again].dtype))
    }


def _earlier(recipe: Recipe, case: Case) -> list[dict[str, Any]]:
    """The calls that are made before, where more than one number of an operand is another one."""
    if recipe.again in ("", SAME, *NUMBERS):
        return []
    calls = [replace(case, inputs=inputs, options=given) for inputs, given in earlier(recipe, case.inputs)]
    return [
        {
            "options": dict(call.options),
            "inputs": {n: encode_array(a) for n, a in call.operands(recipe.dtype).items()},
        }
        for call in calls
    ]


def write_case(folder: Path, found: Mapping[str, Any]) -> Path:
    """Writes a file into a folder, and returns its name.

    Raises:
        UsageError: it cannot be written.
    """
    path = folder / f"{str(found['id']).replace('/', '-')}.json"
    try:
        path.write_text(file_text(found), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def read_cases(path: Path) -> tuple[Case, ...]:
    """The case of a file, with expected values derived anew; before it the call that it follows, if any.

    Raises:
        UsageError: it cannot be read, or holds no call that can be judged.
    """
    data = _data(path)
    if missing := lacking(data["operation"], data["inputs"]):
        raise UsageError(f"{path} is not a case of version 1: it lacks {', '.join(missing)}")
    try:
        inputs = {name: decode_array(name, entry) for name, entry in data["inputs"].items()}
        before = {name: decode_array(name, entry) for name, entry in (data["before"] or {}).items()}
        calls = [
            {**data, **call, "inputs": {n: decode_array(n, entry) for n, entry in call["inputs"].items()}}
            for call in data.get("earlier", ())
        ]
    except ProtocolError as error:
        raise UsageError(f"{path} is no case: {error}") from error
    case = _certified(path, data, inputs, data["id"])
    if calls:
        found = [
            _certified(path, {**call, "rows": None}, call["inputs"], f"{data['id']}-before-{n}")
            for n, call in enumerate(calls)
        ]
        return (*found, replace(case, id=f"{data['id']}-then"))
    if data["before"] is None:
        return (case,)
    if not before:
        return (replace(case, repeat=2),)
    first = _certified(path, data, {**inputs, **before}, f"{data['id']}-before")
    return first, replace(case, id=f"{data['id']}-then")


def _data(path: Path) -> dict[str, Any]:
    try:
        data = strict_json(read_bytes(path))
    except TooLargeError as error:
        raise UsageError(f"{path} is no case: {error}") from error
    except OSError as error:
        raise UsageError(f"case {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"case {path} is not JSON: {error}") from error
    if reason := flaw(case_validator(), data):
        raise UsageError(f"{path} is not a case of version {CASE_VERSION}: {reason}")
    return dict(data)


def _certified(path: Path, data: Mapping[str, Any], inputs: Mapping[str, Array], name: str) -> Case:
    """The case with the bounds of every dtype that holds its numbers."""
    rows = None if data["rows"] is None else tuple(data["rows"])
    q_len = inputs["query"].shape[-2] if "query" in inputs and inputs["query"].ndim > 1 else 0
    if rows and max(rows) >= q_len:
        raise UsageError(f"{path} holds a wrong call: its query has no row {max(rows)}")
    needed = {known(f"feature in {path}:", name, FEATURES) for name in data.get("features", ())}
    wide = {n: a if a.dtype.kind in "bi" else a.astype(np.float64) for n, a in inputs.items()}
    found: list[Certified] = []
    reason = ""
    for dtype in DTYPES:
        if dtype == data["dtype"] or all(held([array], held_in(n, dtype)) for n, array in wide.items()):
            try:
                found.append(certify(data["operation"], wide, data["options"], dtype, rows=rows, name=name))
            except UnjudgedError as error:
                reason = str(error)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{path} holds a wrong call: {error}") from error
    if not found:
        raise UsageError(f"{path} holds a call that cannot be judged: {reason}")
    case = joined([each.case for each in found])
    return replace(
        case,
        features=tuple(name for name in FEATURES if name in needed or name in case.features),
        covers=tuple(data["covers"]),
        note=data["note"],
        memory=data["memory"],
    )


def joined(cases: list[Case]) -> Case:
    """Cases of one call in several dtypes as one."""
    first = cases[0]
    expected = {
        name: replace(golden, bounds={d: b for case in cases for d, b in case.expected[name].bounds.items()})
        for name, golden in first.expected.items()
    }
    dtypes = tuple(d for d in DTYPES if any(d in case.dtypes for case in cases))
    excluded = {
        key: why
        for case in cases
        for key, why in case.excluded.items()
        if key.partition("/")[0] in case.dtypes
    }
    return replace(first, dtypes=dtypes, expected=expected, excluded=excluded)
