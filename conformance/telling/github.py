"""Markdown for people who look at a run or a comparison in a browser: the step summary of GitHub, a comment."""

import os
from collections.abc import Iterable, Sequence

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.telling.compare import KINDS, Comparison
from conformance.telling.report import Report
from conformance.telling.requirement_ranking import blame
from conformance.telling.requirements import Requirement, named
from conformance.telling.table import cell, chapters, summary_lines, title
from conformance.telling.terminal import safe, shorten

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Where GitHub says which file the summary of a step goes to."""
ROWS, BLAMED = 30, 8
CHARACTERS = 300
"""Characters of a message that are shown."""


def summarise(text: str) -> None:
    """Adds Markdown to the summary of a step on GitHub, if this is one."""
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8", opener=_at_once) as file:
            file.write(text)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def run_markdown(
    report: Report,
    requirements: Iterable[Requirement] = (),
    profile: str | None = None,
    diagnosis: Iterable[str] = (),
) -> str:
    """A run: status, profile, diagnosis, chapter by dtype, broken requirements, the rows that fail it."""
    dtypes = [dtype for dtype in DTYPES if any(row.dtype == dtype for row in report.results)]
    wrong = [row for row in report.results if row.unexpected]
    parts = [
        f"### {escape(title(report))}: {report.status}",
        *(escape(line.plain) for line in summary_lines(report, profile)),
        *(f"**Diagnosis:** {escape(line.removeprefix('diagnosis: '))}" for line in diagnosis),
        table(
            ("chapter", *dtypes),
            (
                (chapter, *(cell(_of(report.results, chapter, dtype)).plain for dtype in dtypes))
                for chapter in chapters([report])
            ),
        ),
    ]
    if report.gave_up:
        parts.insert(1, escape(report.gave_up))
    if report.failed:
        titles = {requirement.id: requirement.title for requirement in requirements}
        parts.append(
            table(
                ("requirement", "failed", "what it requires"),
                (
                    (
                        named(each.requirement),
                        f"{each.failed} of {each.tested}",
                        titles.get(each.requirement, ""),
                    )
                    for each in blame(report.results)[:BLAMED]
                ),
            )
        )
    if wrong:
        parts.append(
            table(
                ("verdict", "case", "dtype", "message"),
                ((row.verdict, row.case, row.dtype, row.message) for row in wrong[:ROWS]),
            )
        )
    if len(wrong) > ROWS:
        parts.append(f"... and {len(wrong) - ROWS} more")
    parts += [escape(problem) for problem in (report.baseline.problems if report.baseline else ())]
    return "\n\n".join(parts) + "\n"


def misused_markdown(message: str) -> str:
    """A call that was wrong, or a target that cannot be loaded: nothing was run."""
    return f"### mha-conformance: nothing was run\n\n{escape(message)}\n\n"


def comparison_markdown(comparison: Comparison) -> str:
    """What changed between two reports."""
    count = ", ".join(f"{len(getattr(comparison, name))} {word}" for name, word in KINDS.items())
    parts = [f"### {count}, {comparison.same} the same"]
    parts += ["\n".join(f"- {escape(note)}" for note in comparison.notes)] if comparison.notes else []
    for name, word in KINDS.items():
        changes = getattr(comparison, name)
        if changes:
            rows = ((word, c.row.case, c.row.dtype, c.words, c.row.message) for c in changes[:ROWS])
            parts.append(table(("change", "case", "dtype", "verdict", "message"), rows))
        if len(changes) > ROWS:
            parts.append(f"... and {len(changes) - ROWS} more")
    return "\n\n".join(parts) + "\n"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [heading, ["---"] * len(heading), *([escape(entry) for entry in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """The text as Markdown shows it as it is: no markup, no HTML, no link, no mention, one line."""
    text = safe(shorten(text, CHARACTERS))
    return "".join(f"&#{ord(c)};" if c in "&<>\\`*_{}[]()#+!|~@:" else c for c in text)


def _of(rows: Iterable[Row], chapter: str, dtype: str) -> Iterable[Row]:
    return (row for row in rows if (row.chapter, row.dtype) == (chapter, dtype))
