"""What failed, case by case, and pictures of what went wrong."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conformance.defects.defect import Defect
from conformance.judging.verdict import Row
from conformance.telling.page.case_files import MOST_OF_FILES, file_address, file_name
from conformance.telling.page.evidence import Evidence, evidence
from conformance.telling.page.runs import NAME, Suspect, sentence_of
from conformance.telling.page.words import CODES, OTHER, index, number
from conformance.telling.report import Report
from conformance.telling.requirement_ranking import blame
from conformance.telling.terminal import shorten
from conformance.vectors.case import Case

MOST_FAILURES = 800
"""Failing cases that are told in words, of all runs together."""
MOST_OF_PICTURES = 2_200_000
"""Characters of SVG that a page holds."""
LINE, MESSAGE = 120, 400
"""Characters of a message, in a closed box and in an open one; the report has more."""


@dataclass(frozen=True)
class FailedRow:
    """One dtype of a failing case."""

    dtype: str
    verdict: str
    error: str
    rms: str
    message: str
    worst: str
    suspects: tuple[Suspect, ...]


@dataclass
class Failure:
    """A case that fails in a run, in some dtypes."""

    id: str  # within the page
    run: int
    case: str
    note: str
    operation: str
    covers: tuple[str, ...]
    options: str
    features: str
    codes: str  # a letter for the verdict of each row
    rows: tuple[FailedRow, ...]
    evidence: Evidence | None = None  # in one dtype
    without: str = ""  # why there is none
    line: str = ""  # what a closed box says
    command: str = ""  # that shows it
    file_name: str = ""  # of its case; empty where no vectors tell
    file: str = ""  # an address that holds the file, where there is room
    _source: list[Row] = field(default_factory=list)


def failures(
    reports: Sequence[Report],
    cases: Sequence[Mapping[str, Case]],
    defects: Mapping[str, Defect],
    most_of_pictures: int = MOST_OF_PICTURES,
    most_of_files: int = MOST_OF_FILES,
) -> tuple[list[Failure], int]:
    """What failed in each run, by case, and how many more failing cases there are.

    Args:
        reports: the runs.
        cases: for each run the cases by ID; none where its vectors are not at hand.
        defects: the bank by ID.
        most_of_pictures: characters of SVG.
        most_of_files: characters of cases to download.
    """
    grouped = [_grouped(report) for report in reports]
    ranked = [
        _ranked(report, groups, known) for report, groups, known in zip(reports, grouped, cases, strict=True)
    ]
    every = list(_in_turn(ranked))
    told = [
        _failure(run, case, grouped[run][case], cases[run].get(case), defects)
        for run, case in every[:MOST_FAILURES]
    ]
    _illustrate(told, reports, cases, most_of_pictures)
    _give_files(told, cases, most_of_files)
    return sorted(told, key=lambda failure: (failure.run, failure.case)), len(every) - len(told)


def _grouped(report: Report) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in report.results:
        if row.failed:
            groups.setdefault(row.case, []).append(row)
    return groups


def _ranked(report: Report, groups: Mapping[str, list[Row]], cases: Mapping[str, Case]) -> list[str]:
    """The failing cases, such that the first few show as much as possible.

    From the most telling requirement down each gives its smallest case, then its next.
    """
    rank = {b.requirement: i for i, b in enumerate(blame(report.results))}
    by_requirement: dict[int, list[str]] = {}
    for case, rows in groups.items():
        first = min((rank.get(id_, len(rank)) for row in rows for id_ in row.covers), default=len(rank))
        by_requirement.setdefault(first, []).append(case)
    placed = []
    for first, names in by_requirement.items():
        names.sort(key=lambda name: (_size(cases.get(name)), name))
        placed += [(i, first, name) for i, name in enumerate(names)]
    return [name for _, _, name in sorted(placed)]


def _size(case: Case | None) -> int:
    return case.elements if case else 0


def _failure(
    run: int, case: str, rows: list[Row], known: Case | None, defects: Mapping[str, Defect]
) -> Failure:
    first = rows[0]
    return Failure(
        id="",
        run=run,
        case=case,
        note=known.note if known else "",
        operation=first.operation,
        covers=first.covers,
        options=", ".join(f"{name} = {value}" for name, value in known.options.items()) if known else "",
        features=shorten(", ".join(first.features), MESSAGE),
        codes="".join(CODES.get(row.verdict, OTHER) for row in rows),
        rows=tuple(_row(row, defects) for row in rows),
        line=shorten(first.message, LINE),
        command=f"-k {shlex.quote(case)} --dtype {first.dtype}",
        _source=rows,
    )


def _row(row: Row, defects: Mapping[str, Defect]) -> FailedRow:
    worst = row.worst
    return FailedRow(
        dtype=row.dtype,
        verdict=row.verdict,
        error=number(row.error_over_bound),
        rms=number(row.rms_over_sigma),
        message=shorten(row.message, MESSAGE),
        worst=""
        if worst is None
        else f"{shorten(worst.output, NAME)}{index(worst.index[:16])}: got {number(worst.got, 9)}, "
        f"expected {number(worst.expected, 9)}, allowed \u00b1{number(worst.allowed)}",
        suspects=tuple(
            Suspect(shorten(d.defect, NAME), sentence_of(d.defect, defects), d.explains, d.of)
            for d in row.diagnosis
        ),
    )


def _illustrate(
    told: Sequence[Failure], reports: Sequence[Report], cases: Sequence[Mapping[str, Case]], most: int
) -> None:
    """Gives pictures to the first failures, until the page is full."""
    left = most
    for failure in told:
        if left <= 0:
            failure.without = (
                "No room for more pictures is left on this page; a page of this run alone has more."
            )
            continue
        case = cases[failure.run].get(failure.case)
        row = next((row for row in failure._source if row.got), failure._source[0])
        failure.evidence = evidence(row, case, reports[failure.run].target.accuracy)
        left -= failure.evidence.size


def _give_files(told: Sequence[Failure], cases: Sequence[Mapping[str, Case]], most: int) -> None:
    """Gives the first failures a file of their case, until the page is full."""
    for failure in told:
        case = cases[failure.run].get(failure.case)
        if case is None:
            continue
        failure.file_name = file_name(case.id)
        address = file_address(case, failure.rows[0].dtype) if most > 0 else ""
        if len(address) <= most:
            failure.file = address
            most -= len(address)


def _in_turn(ranked: Sequence[Sequence[str]]) -> Iterator[tuple[int, str]]:
    """Run and case: the first of each run, then the second of each."""
    for place in range(max(map(len, ranked), default=0)):
        yield from ((run, names[place]) for run, names in enumerate(ranked) if place < len(names))
