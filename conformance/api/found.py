"""A failure that was found, as a row of the report."""

from dataclasses import replace

from conformance.exploring.entries import MANY
from conformance.exploring.said import line
from conformance.exploring.search import Found
from conformance.judging.verdict import Row

REMEMBERED = (
    "What an earlier call left behind decides this one: what is remembered of the operands does not tell them apart, "
    "or memory is read that was never written (IND-4)."
)
UNKNOWN = "no known mistake does the same in all of {} calls that fail alike and in none that is right"
DIAGNOSED = 4.0
"""Seconds of processor time for the diagnosis of each distinct failure."""


def row_of(found: Found, diagnose: bool, policy: str) -> Row:
    """The row of a failure: its smallest call, what it takes to fail, and which known mistake that is."""
    smallest = found.reduced if found.fresh else found.drawn
    assert smallest.row is not None
    assert smallest.case is not None
    row = replace(
        smallest.row, case=found.name, reduced=line(smallest.recipe, smallest.case),
        fails_if=found.needs.sentence(), replay=found.replay,
    )  # fmt: skip
    if not diagnose or not found.looked_into or smallest.recipe.entries > MANY:
        return row
    if smallest.recipe.again or smallest.kind.endswith("twice"):
        found.diagnosis = [REMEMBERED]
        return row
    found.diagnosis, diagnosed = _diagnosis(found, row, policy)
    return diagnosed


def _diagnosis(found: Found, row: Row, policy: str) -> tuple[list[str], Row]:
    """Which known mistakes do the same in the smallest call and in those around it."""
    from conformance.diagnosis.search import diagnose  # which takes long to import
    from conformance.telling.diagnosis import diagnosed_rows, diagnosis_lines

    tried = (found.reduced if found.fresh else found.drawn, *found.evidence)
    cases, rows = [], []
    for number, each in enumerate(tried):
        if each.case is not None and each.row is not None:
            name = f"explore/evidence-{number}"
            cases.append(replace(each.case, id=name))
            rows.append(replace(each.row, case=name))
    told = diagnose(rows, cases, policy, seconds=DIAGNOSED)
    # what it takes to fail stands there already, found by experiments; a mistake that a passing call refutes is none
    findings = tuple(f for f in told.findings if not f.contradicted and f.explains == told.compared)
    refuted = bool(told.findings) and not findings
    told = replace(told, splits=(), findings=findings)
    first = next(iter(diagnosed_rows(rows, told)), row)
    if refuted:
        return [UNKNOWN.format(told.compared)], replace(row, diagnosis=first.diagnosis)
    return diagnosis_lines(told), replace(row, diagnosis=first.diagnosis)
