"""Tables of results: chapter x dtype of one run, chapter x target of many."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from conformance.judging.verdict import FAILURES, Row
from conformance.names import DTYPES, PROFILES
from conformance.telling.compare import KINDS, TWO, Comparison
from conformance.telling.report import Report
from conformance.telling.requirement_ranking import blame
from conformance.telling.requirements import Requirement, named
from conformance.telling.terminal import MESSAGE, STYLES, inert, plain, safe, shorten

BLAMED = 8
"""Requirements that are named as broken."""
SCREEN = 20
"""Lines of a comparison beyond which its counts stand at the beginning as well."""
HEADING, COLUMN = 30, 10
"""Characters of a target's name in a heading, and how many of them stand side by side."""


def run_table(report: Report) -> Table:
    """Chapter x dtype of one run."""
    rows = report.results
    dtypes = [dtype for dtype in DTYPES if any(row.dtype == dtype for row in rows)]
    table = Table("chapter", *dtypes, title=plain(title(report)), title_justify="left")
    for chapter in chapters([report]):
        cells = [
            cell(row for row in rows if (row.chapter, row.dtype) == (chapter, dtype)) for dtype in dtypes
        ]
        table.add_row(plain(shorten(chapter)), *cells)
    return table


def blame_table(
    rows: Sequence[Row], requirements: Iterable[Requirement], causes: Sequence[str] = ()
) -> Table:
    """What fails, as requirements: those that the diagnosis names, then the others, the most informative first."""
    titles = {requirement.id: requirement.title for requirement in requirements}
    table = Table(
        "requirement",
        "failed",
        "what it requires",
        title="failing requirements, most informative first",
        title_justify="left",
    )
    blamed = blame(rows, causes)
    named_first = [each for each in causes if any(b.requirement == each for b in blamed)]
    for number, each in enumerate(blamed[:BLAMED]):
        follows = bool(named_first) and number >= len(named_first)
        lead = "and, as a consequence: " if follows and number == len(named_first) else ""
        style = "dim" if follows else ""
        table.add_row(
            plain(named(each.requirement), style),
            Text(f"{each.failed} of {each.tested}", style or STYLES["fail"]),
            plain(f"{lead}{titles.get(each.requirement, '')}", style),
        )
    return table


def matrix_table(reports: Sequence[Report]) -> Table:
    """Chapter x target of many runs; narrow, so that five of them fit a terminal."""
    table = Table("chapter", padding=(0, 1), box=SIMPLE_HEAD, pad_edge=False)
    for number, name_of in enumerate(apart(reports), 1):
        name = [inert(line) for line in wrap(safe(shorten(name_of, HEADING)), COLUMN)] or [""]
        table.add_column(Text("\n".join([str(number), *name])), min_width=7)
    for chapter in chapters(reports):
        cells = [short_cell(row for row in report.results if row.chapter == chapter) for report in reports]
        table.add_row(plain(shorten(chapter)), *cells)
    return table


def matrix_lines(reports: Sequence[Report]) -> list[Text]:
    """One line for each column of the table: what was run, its status and its counts."""
    return [
        Text.assemble(plain(f"{number} {title(report, name)}: "), summary_line(report))
        for number, (report, name) in enumerate(zip(reports, apart(reports), strict=True), 1)
    ]


def apart(reports: Sequence[Report]) -> list[str]:
    """The names of targets; where some share one, what they are called by on the command line."""
    names = [report.target.name for report in reports]
    return [r.target.source if names.count(r.target.name) > 1 else r.target.name for r in reports]


def title(report: Report, name: str = "") -> str:
    """A target in a few words."""
    target = report.target
    words = (shorten(name or target.name), shorten(target.version or ""), f"({target.accuracy})")
    return " ".join(filter(None, words))


def chapters(reports: Iterable[Report]) -> list[str]:
    """Every chapter of the results, in the order of the case IDs."""
    return sorted({row.chapter for report in reports for row in report.results})


def counts(rows: Iterable[Row]) -> tuple[int, int, int, int]:
    """How many rows are in order, fail the run, fail as is known, and are unsupported."""
    verdicts = [row.verdict for row in rows]
    known, unsupported = verdicts.count("xfail"), verdicts.count("unsupported")
    passed = verdicts.count("pass")
    return passed, len(verdicts) - passed - known - unsupported, known, unsupported


def _failed(rows: Iterable[Row], word: str) -> str:
    """What is said of rows that fail the run: those that pass though a baseline knows better are no failures."""
    return word if any(row.verdict in FAILURES for row in rows) else "xpass"


def cell(rows: Iterable[Row]) -> Text:
    """How many of some rows pass; whatever fails comes first, and unsupported is never a pass."""
    rows = list(rows)
    passed, failed, known, unsupported = counts(rows)
    if failed:
        return Text(f"{failed} of {failed + known + passed} {_failed(rows, 'failed')}", STYLES["fail"])
    if known:
        return Text(f"{known} of {known + passed} xfail", STYLES["xfail"])
    if passed:
        return Text(f"{passed} pass", STYLES["pass"])
    return Text("unsupported" if unsupported else "", STYLES["unsupported"])


def short_cell(rows: Iterable[Row]) -> Text:
    """The same for a narrow column."""
    rows = list(rows)
    passed, failed, known, unsupported = counts(rows)
    if failed:
        return Text(f"{failed} {_failed(rows, 'fail')}", STYLES["fail"])
    if known:
        return Text(f"{known} xfail", STYLES["xfail"])
    if passed:
        return Text(f"{passed} pass", STYLES["pass"])
    return Text("unsupported" if unsupported else "", STYLES["unsupported"])


def summary_line(report: Report) -> Text:
    """The status of a run and its counts."""
    counts = ", ".join(
        f"{n} {verdict}" for verdict, n in report.summary.items() if n or verdict in ("pass", "fail")
    )
    lacking = f", {report.lacking} not run" if report.lacking else ""
    return Text.assemble((report.status, STYLES[report.status]), f": {counts}{lacking}")


def summary_lines(report: Report, profile: str | None = None) -> list[Text]:
    """The last lines of a run: its status and counts, and the profile asked for."""
    lines = [summary_line(report)]
    if profile is not None:
        word = report.profiles[profile]
        lines.append(Text.assemble(f"profile {profile}: ", (word, STYLES[word]), lacking(report, profile)))
    return lines


def lacking(report: Report, profile: str) -> str:
    """` (not supported: gqa, cache)`: what a profile needs and the target lacks; empty where it has all."""
    names = [name for name in PROFILES[profile] if report.features[name].status == "not claimed"]
    return f" (not supported: {', '.join(names)})" if names else ""


def comparison_lines(comparison: Comparison) -> list[Text]:
    """What changed between two reports: notes, a line a row, and the counts."""
    notes = [plain(f"note: {note}", "yellow") for note in comparison.notes]
    lines = []
    for name, word in KINDS.items():
        for change in getattr(comparison, name):
            style = {"regressions": "red", "fixed": "green"}.get(name, "")
            message = (
                f": {shorten(change.row.message, MESSAGE)}" if change.after and change.row.message else ""
            )
            lines.append(
                Text.assemble(
                    (f"{word:<10}", style),
                    plain(f"{change.row.case} {change.row.dtype} ({change.words}){message}"),
                )
            )
    counts = ", ".join(f"{len(getattr(comparison, name))} {word}" for name, word in KINDS.items())
    summary = plain(f"{counts}, {comparison.same} the same")
    first = [summary] if len(notes) + len(lines) > SCREEN else []
    ahead = sum(note.startswith(TWO) for note in comparison.notes)
    return [*notes[:ahead], *first, *notes[ahead:], *lines, summary]
