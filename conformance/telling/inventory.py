"""What the suite holds: backends, cases, requirements, features, profiles, and one case in full."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from conformance.defects.defect import Defect
from conformance.names import DECLARED_FEATURES, FEATURES, OPERATION_FEATURES, OPTION_FEATURES, PROFILES
from conformance.problems.problem import problems as shipped
from conformance.problems.problem import read
from conformance.running.locating import implementations
from conformance.running.select import in_profile
from conformance.telling.installed import described
from conformance.telling.meanings import MEANINGS
from conformance.telling.requirements import named, named_all, read_requirements
from conformance.telling.row_json import number_to_json
from conformance.telling.terminal import counted, plain
from conformance.telling.tolerance import (
    LEGEND,
    LEGEND_IN_FULL,
    tolerance_lines,
    tolerance_lines_in_full,
)
from conformance.vectors import load
from conformance.vectors.case import Array, Case, Golden
from conformance.vectors.coverage import HOLES
from conformance.vectors.coverage import coverage as coverage_of
from conformance.vectors.seeded import seed_json

Entry = dict[str, Any]

PROFILE_NOTES = {
    "training": "also needs the gradient of each claimed operation",
}

SHOWN = 40
"""Elements up to which an array is written out for people."""


def backends() -> list[Entry]:
    """Every name that `run` knows."""
    entries = []
    for name, value in implementations().items():
        about, libraries = described(value)
        entries.append({"name": name, "library": libraries, "about": about, "stands for": value})
    return entries


def cases() -> list[Entry]:
    """Every case."""
    return [
        {
            "id": case.id,
            "operation": case.operation,
            "dtypes": list(case.dtypes),
            "features": list(case.features),
            "covers": list(case.covers),
            "note": case.note,
        }
        for case in load.load_vectors().cases
    ]


def requirements() -> list[Entry]:
    """Every requirement, with the cases that cover it."""
    covering: dict[str, list[str]] = {}
    for case in load.load_vectors().cases:
        for requirement in case.covers:
            covering.setdefault(requirement, []).append(case.id)
    return [
        {
            "id": r.id,
            "name": r.name,
            "title": r.title,
            "notes": list(r.notes),
            "file": r.file,
            "cases": covering.get(r.id, []),
        }
        for r in read_requirements()
    ]


def features() -> list[Entry]:
    """Every feature, how a target claims it, and how many cases need it."""
    needed = Counter(feature for case in load.load_vectors().cases for feature in case.features)
    return [
        {"name": name, "claimed": _claimed(name), "meaning": MEANINGS[name], "cases": needed[name]}
        for name in FEATURES
    ]


def _claimed(feature: str) -> str:
    if feature == "cache":
        return "by taking past_key and past_value"
    if feature == "grad_lse":
        return "by taking grad_lse in a gradient"
    if feature == "segments":
        return "by taking q_segments and kv_segments"
    if feature in OPTION_FEATURES:
        return f"by taking {feature}"
    if feature in OPERATION_FEATURES.values():
        return "by having the function"
    return "only when declared" if feature in DECLARED_FEATURES else "by default"


def profiles() -> list[Entry]:
    """Every profile, the features that it needs, and how many cases are in it."""
    every = load.load_vectors().cases
    return [
        {
            "name": name,
            "features": list(needed),
            "cases": sum(in_profile(case.operation, case.features, name) for case in every),
            "note": PROFILE_NOTES.get(name, ""),
        }
        for name, needed in PROFILES.items()
    ]


def defects() -> list[Entry]:
    """Every planted defect."""
    return [
        {
            "id": defect.id,
            "violates": list(defect.violates),
            "sentence": defect.sentence,
            "features": list(defect.features),
            "origin": defect.origin,
            "equivalent": defect.equivalent,
        }
        for defect in read_defects()
    ]


def coverage() -> list[Entry]:
    """Every cell of the table of coverage, with the cases that hold it."""
    return [
        {
            "part": cell.part,
            "cell": cell.name,
            "cases": list(cell.cases),
            "note": HOLES.get((cell.part, cell.name), "") if not cell.cases else "",
        }
        for cell in coverage_of(load.load_vectors().cases)
    ]


def read_defects() -> tuple[Defect, ...]:
    """The bank, which a run has no need of."""
    from conformance.defects.bank import DEFECTS

    return DEFECTS


def problems() -> list[Entry]:
    """Every problem that programs can be judged by."""
    return [
        {
            "name": problem.name,
            "title": problem.title,
            "about": problem.about,
            "operation": problem.operation,
            "dtypes": list(problem.dtypes),
            "policy": problem.policy,
            "called": f"{problem.call.kind} {problem.call.names[0]}",
            "file": str(path),
        }
        for path in shipped().values()
        for problem in [read(path)]
    ]


LISTS: dict[str, tuple[Callable[[], list[Entry]], tuple[str, ...]]] = {
    "backends": (backends, ("name", "library", "about")),
    "cases": (cases, ("id", "note")),
    "requirements": (requirements, ("id", "name", "title", "notes", "cases")),
    "features": (features, ("name", "claimed", "meaning", "cases")),
    "coverage": (coverage, ("part", "cell", "cases", "note")),
    "defects": (defects, ("id", "violates", "sentence")),
    "problems": (problems, ("name", "title", "called")),
    "profiles": (profiles, ("name", "cases", "features", "note")),
}
"""What can be listed: its entries, and the fields that a table shows."""


def list_table(entries: Iterable[Entry], fields: Sequence[str]) -> Table:
    """Entries as a table; of a list of cases only its length."""
    table = Table()
    for field in fields:
        table.add_column(field, overflow="fold")  # a name that is cut is of no use
    for entry in entries:
        table.add_row(*(plain(_cell(field, entry[field])) for field in fields))
    return table


def _cell(field: str, value: Any) -> str:
    if field == "violates":
        return named_all(value)
    if isinstance(value, list):
        return (
            str(len(value))
            if field == "cases"
            else " · ".join(value)
            if field == "notes"
            else " ".join(value)
        )
    return str(value)


def case_json(case: Case) -> Entry:
    """A case in full, every number of it."""
    return {
        "id": case.id,
        "note": case.note,
        "operation": case.operation,
        "covers": list(case.covers),
        "features": list(case.features),
        "dtypes": list(case.dtypes),
        "excluded": dict(case.excluded),
        "options": dict(case.options),
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


def _golden_json(golden: Golden) -> Entry:
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
