"""What the suite holds: backends, cases, requirements, features, profiles.

A list imports what it is made of when it is asked for: NumPy and the bank take longer than a short list.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from conformance.garbage import no_search
from conformance.names import DECLARED_FEATURES, FEATURES, OPERATION_FEATURES, OPTION_FEATURES, PROFILES
from conformance.telling.meanings import MEANINGS
from conformance.telling.requirements import named_all, read_requirements
from conformance.telling.terminal import plain

if TYPE_CHECKING:
    from conformance.defects.defect import Defect
    from conformance.vectors.case import Case

Entry = dict[str, Any]

PROFILE_NOTES = {
    "training": "also needs the gradient of each claimed operation",
}


def read_cases() -> "tuple[Case, ...]":
    """The cases that ship."""
    from conformance.vectors.load import load_vectors

    return load_vectors().cases


def backends() -> list[Entry]:
    """Every name that `run` knows."""
    from conformance.running.locating import implementations
    from conformance.telling.installed import described

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
        for case in read_cases()
    ]


def requirements() -> list[Entry]:
    """Every requirement, with the cases that cover it."""
    covering: dict[str, list[str]] = {}
    for case in read_cases():
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
    needed = Counter(feature for case in read_cases() for feature in case.features)
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
    from conformance.running.select import in_profile

    every = read_cases()
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
    from conformance.vectors.coverage import HOLES
    from conformance.vectors.coverage import coverage as coverage_of

    return [
        {
            "part": cell.part,
            "cell": cell.name,
            "cases": list(cell.cases),
            "note": HOLES.get((cell.part, cell.name), "") if not cell.cases else "",
        }
        for cell in coverage_of(read_cases())
    ]


def read_defects() -> "tuple[Defect, ...]":
    """The bank, which a run has no need of."""
    with no_search():
        from conformance.defects.bank import DEFECTS

    return DEFECTS


def problems() -> list[Entry]:
    """Every problem that programs can be judged by."""
    from conformance.problems.problem import problems as shipped
    from conformance.problems.problem import read

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
