"""One case in full: for programs, and for people."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.telling.requirements import named
from conformance.telling.row_json import number_to_json
from conformance.telling.terminal import counted
from conformance.telling.tolerance import (
    LEGEND,
    LEGEND_IN_FULL,
    tolerance_lines,
    tolerance_lines_in_full,
)
from conformance.vectors.case import Array, Case, Golden
from conformance.vectors.seeded import seed_json

SHOWN = 40
"""Elements up to which an array is written out for people."""


def case_json(case: Case) -> dict[str, Any]:
    """A case in full, every number of it."""
    return {
        **case.described,
        "inputs": {
            name: {
                "dtype": case.dtype_of.get(name, str(array.dtype)),
                "shape": list(array.shape),
                **(
                    {"seeded": seed_json(case.seeded[name])}
                    if name in case.seeded
                    else {"values": values(array)}
                ),
            }
            for name, array in case.inputs.items()
        },
        "memory": dict(case.memory),
        "repeat": case.repeat,
        "raises": case.raises,
        "expected": {name: _golden_json(golden) for name, golden in case.expected.items()},
    }


def _golden_json(golden: Golden) -> dict[str, Any]:
    return {
        "shape": list(golden.shape),
        "rows": None if golden.rows is None else list(golden.rows),
        "values": values(golden.hi),
        "remainders": values(golden.lo),
        "rms_applies": golden.rms_applies,
        "tolerance": {
            dtype: {policy: {"W": values(b.worst), "s": values(b.rms)} for policy, b in policies.items()}
            for dtype, policies in golden.bounds.items()
        },
        "signatures": {
            name: {"direction": values(signature.direction), "limits": signature.limits}
            for name, signature in golden.signatures.items()
        },
    }


def values(array: Array) -> Any:
    """An array as nested lists of JSON numbers."""
    nested = array.tolist()
    return nested if array.dtype.kind in "bi" else _finite(nested)


def _finite(nested: Any) -> Any:
    return [_finite(item) for item in nested] if isinstance(nested, list) else number_to_json(float(nested))


def case_lines(case: Case, titles: Mapping[str, str], verbose: bool = False) -> list[str]:
    """A case for people: what it exposes, what goes in, what must come out and how closely."""
    lines = [case.id, f"  {case.note}", "", f"operation  {case.operation}"]
    lines += [f"covers     {named(id_)}  {titles.get(id_, '')}".rstrip() for id_ in case.covers]
    lines += [
        f"features   {', '.join(case.features) or 'none: core'}",
        f"dtypes     {', '.join(case.dtypes)}",
    ]
    lines += [f"excluded   {what}: {why}" for what, why in case.excluded.items()]
    lines += [f"option     {name} = {value}" for name, value in case.options.items()]
    for name, array in case.inputs.items():
        own = (
            ""
            if array.dtype.kind == "f" and name not in case.dtype_of
            else f" {case.dtype_of.get(name, array.dtype)}"
        )
        memory = f", {case.memory[name]} in memory" if name in case.memory else ""
        lines += ["", f"input {name} {array.shape}{own}{memory}{_seeded(case, name)}", *_array_lines(array)]
    if case.repeat > 1:
        lines += ["", f"called {counted(case.repeat, 'time')}; the last answer counts"]
    if case.raises:
        lines += ["", "expected: any exception but NotImplementedError"]
    for name, golden in case.expected.items():
        rows = f", rows {', '.join(map(str, golden.rows))}" if golden.rows is not None else ""
        rows += ", finite elsewhere" if golden.finite else ""
        lines += ["", f"expected {name} {golden.shape}{rows}", *_array_lines(golden.hi)]
        lines += tolerance_lines_in_full(golden) if verbose else tolerance_lines(golden)
    if case.expected:
        lines += ["", LEGEND_IN_FULL if verbose else LEGEND]
    return lines


def _seeded(case: Case, name: str) -> str:
    """How an operand that is not stored is made."""
    if name not in case.seeded:
        return ""
    seed = case.seeded[name]
    numbers = f"{seed.bits} bits, power {seed.power}" if seed.share is None else f"{seed.share} of 256 true"
    boxes = f", {counted(len(seed.boxes), 'part')} of another value" if seed.boxes else ""
    return f", made of seed {seed.seed}: {numbers}{boxes}"


def _array_lines(array: Array) -> list[str]:
    text = np.array2string(array, threshold=SHOWN, edgeitems=2, max_line_width=100, precision=8)
    return [f"  {line}" for line in text.splitlines()]
