"""A run that has ended, as one frozen result that the printers take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.running.events import Started
from conformance.running.messages import Hello
from conformance.running.request import Request
from conformance.telling import summary
from conformance.telling.report import Report
from conformance.telling.terminal import counted

if TYPE_CHECKING:
    from conformance.diagnosis.finding import Diagnosed

MOSTLY = 0.8
"""The share of the failures that a diagnosis explains, from which on the rest of what fails is a consequence."""


@dataclass(frozen=True)
class Finished:
    """The report of a run and the lines next to it, each whole; there is none of what there is nothing to say of."""

    report: Report
    by_operation: str  # how many tests each operation got; empty where there is one
    diagnosis: tuple[str, ...]  # sentences
    causes: tuple[str, ...]  # the requirements that the diagnosis says are broken
    outliers: tuple[str, ...]  # passing rows that meet a weaker policy than nearly all others, by dtype
    notes: tuple[
        str, ...
    ]  # what was varied, what is only assumed to be supported, which dtypes were left out
    left_open: str  # why an incomplete run is incomplete
    written: tuple[str, ...]  # the hash of the report's file, and which files were written


def diagnosis(found: "Diagnosed | None", rows: Sequence[Row]) -> tuple[str, ...]:
    """What was found, in sentences; none if it was not looked for."""
    if found is None:
        return ()
    from conformance.telling.diagnosis import diagnosis_lines  # which takes long to import

    return tuple(f"diagnosis: {line}" for line in diagnosis_lines(found, rows))


def causes(found: "Diagnosed | None") -> tuple[str, ...]:
    """The requirements that the diagnosis says are broken, if it explains nearly all that fails."""
    if found is None or found.explained < MOSTLY * found.failed:
        return ()
    told = [(len(note.explained), note.violates) for note in found.notes]
    told += [(finding.explains, finding.model.violates) for finding in found.findings]
    ordered = sorted(told, key=lambda each: -each[0])
    return tuple(dict.fromkeys(name for _, violates in ordered for name in violates))


def varied(rows: Sequence[Row], started: Started, seed: int | None) -> str:
    """How many rows were also run as a variant, and how to repeat the same ones; empty if none were."""
    number = sum(row.key in started.varied for row in rows)
    if not number:
        return ""
    were, them = ("was", "it") if number == 1 else ("were", "them")
    return (
        f"{counted(number, 'test')} {were} also run with randomised inputs; repeat {them} with --fresh {seed}"
    )


def undeclared(hello: Hello, request: Request) -> str:
    """Which dtypes the target was not asked at since it does not declare them; empty if none."""
    left = [dtype for dtype in DTYPES if dtype not in hello.dtypes]
    if not left or request.selection.dtypes:
        return ""
    return f"not tested: {', '.join(left)}, which the target does not declare in `dtypes`"


def unrefused(hello: Hello, request: Request) -> str:
    """That wrong calls were not tested; empty where they were, or where a part of the suite was left out."""
    if "validation" in hello.features or request.selection.narrowed:
        return ""
    return (
        "calls that must be refused were not tested: declare `validation` in `features` if they are refused"
    )


def left_open(rows: Sequence[Row], started: Started, request: Request) -> str:
    """Why an incomplete run is incomplete."""
    reasons = []
    if request.selection.narrowed:
        reasons.append(f"{request.selection.narrowed} left out a part of the suite")
    if len(rows) < started.total:
        reasons.append(f"only {len(rows)} of {counted(started.total, 'test')} were run")
    reasons += summary.unsupported_claims(rows, started.hello)
    return "; ".join(reasons) or "no test of a supported feature was run"
