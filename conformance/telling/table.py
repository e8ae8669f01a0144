"""Tables of results: chapter x dtype of one run, chapter x target of many."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.telling.blame import blame
from conformance.telling.report import Report
from conformance.telling.requirements import Requirement
from conformance.telling.text import STYLES, plain

BLAMED = 8
"""Requirements that are named as broken."""


def run_table(report: Report) -> Table:
    """Chapter x dtype of one run."""
    rows = report.results
    dtypes = [dtype for dtype in DTYPES if any(row.dtype == dtype for row in rows)]
    table = Table("chapter", *dtypes, title=plain(title(report)), title_justify="left")
    for chapter in chapters([report]):
        cells = [
            cell(row for row in rows if (row.chapter, row.dtype) == (chapter, dtype)) for dtype in dtypes
        ]
        table.add_row(plain(chapter), *cells)
    return table


def blame_table(rows: Sequence[Row], requirements: Iterable[Requirement]) -> Table:
    """What fails, as requirements, the most telling first."""
    titles = {requirement.id: requirement.title for requirement in requirements}
    table = Table(
        "requirement",
        "failed",
        "what it asks for",
        title="what fails, most telling first",
        title_justify="left",
    )
    for each in blame(rows)[:BLAMED]:
        table.add_row(
            plain(each.requirement),
            Text(f"{each.failed} of {each.tested}", STYLES["fail"]),
            plain(titles.get(each.requirement, "")),
        )
    return table


def matrix_table(reports: Sequence[Report]) -> Table:
    """Chapter x target of many runs, and the status of each below."""
    table = Table("chapter")
    for report in reports:
        table.add_column(plain(title(report)))
    for chapter in chapters(reports):
        cells = [cell(row for row in report.results if row.chapter == chapter) for report in reports]
        table.add_row(plain(chapter), *cells)
    table.add_section()
    table.add_row("status", *(Text(report.status, STYLES[report.status]) for report in reports))
    return table


def title(report: Report) -> str:
    """A target in a few words."""
    target = report.target
    return " ".join(filter(None, (target.name, target.version, f"({target.accuracy})")))


def chapters(reports: Iterable[Report]) -> list[str]:
    """Every chapter of the results, in the order of the case IDs."""
    return sorted({row.chapter for report in reports for row in report.results})


def cell(rows: Iterable[Row]) -> Text:
    """How many of some rows pass; whatever fails comes first, and unsupported is never a pass."""
    verdicts = [row.verdict for row in rows]
    passed, unsupported = verdicts.count("pass"), verdicts.count("unsupported")
    failed = len(verdicts) - passed - unsupported
    if failed:
        return Text(f"{failed} of {failed + passed} failed", STYLES["fail"])
    if passed:
        return Text(f"{passed} pass", STYLES["pass"])
    return Text("unsupported" if unsupported else "", STYLES["unsupported"])


def summary_lines(report: Report, profile: str | None = None) -> list[Text]:
    """The last lines of a run: counts, the profile asked for, the status."""
    counts = ", ".join(
        f"{n} {verdict}" for verdict, n in report.summary.items() if n or verdict in ("pass", "fail")
    )
    lines = [Text.assemble((report.status, STYLES[report.status]), f": {counts}")]
    if profile is not None:
        word = report.profiles[profile]
        lines.append(Text.assemble(f"profile {profile}: ", (word, STYLES[word])))
    return lines
