"""The two tables of the page: requirement by run, and row by run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.telling.page.prose import inline, prose
from conformance.telling.page.words import CODES, OTHER, SYMBOLS, kind, number
from conformance.telling.report import Report
from conformance.telling.requirements import Requirement, id_order


@dataclass(frozen=True)
class Cell:
    """What stands in a cell: its class, its text, and the place of what it links to."""

    kind: str
    text: str
    link: str = ""


@dataclass(frozen=True)
class RequirementRow:
    """A requirement, and how each run fared."""

    number: int
    id: str
    name: str
    title: Markup
    notes: str
    text: Markup
    rationale: Markup
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class DtypeRow:
    """A case in one dtype, and the verdict of each run."""

    dtype: str
    codes: str  # a letter for each run
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class CaseRows:
    """A case in all its dtypes."""

    number: int
    id: str
    note: str  # empty where no vectors tell
    operation: str
    covers: str  # numbers of requirements, separated by spaces
    rows: tuple[DtypeRow, ...]


@dataclass(frozen=True)
class Chapter:
    """The cases of a chapter, and how many of their tests pass, fail and are not supported, in all runs."""

    name: str
    cases: tuple[CaseRows, ...]
    counts: Counter[str]  # by CSS class


def requirement_rows(reports: Sequence[Report], texts: Mapping[str, Requirement]) -> list[RequirementRow]:
    """The requirements that some row covers, by ID."""
    counts = [_counts(report.results) for report in reports]
    return [
        _requirement_row(i, id_, texts.get(id_), [_count_cell(of.get(id_, Counter())) for of in counts])
        for i, id_ in enumerate(covered(reports))
    ]


def covered(reports: Sequence[Report]) -> list[str]:
    """Every requirement that a row covers."""
    return sorted({id_ for report in reports for row in report.results for id_ in row.covers}, key=id_order)


def _requirement_row(i: int, id_: str, known: Requirement | None, cells: list[Cell]) -> RequirementRow:
    if known is None:
        return RequirementRow(
            i,
            id_,
            "",
            Markup(""),
            "not in this version of the specification",
            Markup(""),
            Markup(""),
            tuple(cells),
        )
    return RequirementRow(
        number=i,
        id=id_,
        name=known.name,
        title=inline(known.title),
        notes=" \u00b7 ".join(known.notes),
        text=prose(known.text),
        rationale=prose(known.rationale),
        cells=tuple(cells),
    )


def _counts(rows: Sequence[Row]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for id_ in row.covers:
            counts.setdefault(id_, Counter())[kind(row.verdict)] += 1
    return counts


def _count_cell(counts: Counter[str]) -> Cell:
    """The script writes the same of the rows that are left by its filters."""
    passed, failed = counts["p"], counts["x"]
    if failed:
        return Cell("x", f"{SYMBOLS['fail']} {failed}/{failed + passed}")
    if passed:
        return Cell("p", f"{SYMBOLS['pass']} {passed}")
    return Cell("u", SYMBOLS["unsupported"] if counts["u"] else "")


def case_rows(
    reports: Sequence[Report], notes: Mapping[str, str], links: Mapping[tuple[int, str], str]
) -> list[CaseRows]:
    """Every case of the runs, those of chapters with failures first.

    Args:
        reports: the runs.
        notes: of cases, by ID.
        links: where the failures of a run and case are shown.
    """
    found: dict[str, dict[str, dict[int, Row]]] = {}
    for run, report in enumerate(reports):
        for row in report.results:
            found.setdefault(row.case, {}).setdefault(row.dtype, {})[run] = row
    place = {id_: i for i, id_ in enumerate(covered(reports))}
    failing = {
        chapter_of(row.case) for report in reports for row in report.results if kind(row.verdict) == "x"
    }
    result = []
    for number_, case in enumerate(sorted(found, key=lambda id_: (chapter_of(id_) not in failing, id_))):
        dtypes = found[case]
        any_row = next(iter(next(iter(dtypes.values())).values()))
        covers = sorted({place[c] for of in dtypes.values() for row in of.values() for c in row.covers})
        rows = tuple(
            _dtype_row(dtype, dtypes[dtype], len(reports), links) for dtype in DTYPES if dtype in dtypes
        )
        result.append(
            CaseRows(number_, case, notes.get(case, ""), any_row.operation, " ".join(map(str, covers)), rows)
        )
    return result


def chapters(rows: Sequence[CaseRows]) -> list[Chapter]:
    """The cases by chapter, in the order in which they are given."""
    found: dict[str, list[CaseRows]] = {}
    for case in rows:
        found.setdefault(chapter_of(case.id), []).append(case)
    return [
        Chapter(name, tuple(cases), Counter(c.kind for case in cases for row in case.rows for c in row.cells))
        for name, cases in found.items()
    ]


def chapter_of(id_: str) -> str:
    """The part of a case's ID before the slash."""
    return id_.partition("/")[0]


def _dtype_row(
    dtype: str, of: Mapping[int, Row], runs: int, links: Mapping[tuple[int, str], str]
) -> DtypeRow:
    cells, codes = [], ""
    for run in range(runs):
        row = of.get(run)
        if row is None:
            cells.append(Cell("", ""))
            codes += "."
            continue
        cells.append(row_cell(row, links.get((run, row.case), "")))
        codes += CODES.get(row.verdict, OTHER)
    return DtypeRow(dtype, codes, tuple(cells))


def row_cell(row: Row, link: str) -> Cell:
    """The verdict of a row with its error; as a word where nothing was measured."""
    symbol = SYMBOLS.get(row.verdict, OTHER)
    measured = row.error_over_bound is not None and row.verdict in ("pass", "fail")
    word = number(row.error_over_bound, 2) if measured else ""
    if not word and row.verdict not in ("pass", "unsupported"):
        word = row.verdict
    return Cell(kind(row.verdict), f"{symbol} {word}".strip(), link if row.failed else "")
