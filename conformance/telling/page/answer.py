"""What the page answers first: of each target one sentence and one bar, and which features it has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.names import FEATURES
from conformance.telling.page.runs import Run
from conformance.telling.report import Report
from conformance.telling.requirements import named
from conformance.telling.terminal import counted

WIDTH, HEIGHT = 1000, 14
PARTS = (("pass", "bp"), ("known", "bk"), ("fail", "bx"), ("not supported", "bu"))
"""Parts of a bar: the word, and the CSS class."""
PLAIN = "plain attention"
"""What the row of those tests is called that need no feature."""
WORDS = {"conformant": "is conformant", "non-conformant": "is wrong", "incomplete": "is not finished"}


@dataclass(frozen=True)
class Answer:
    """One target in a line."""

    run: int  # from 0
    name: str
    status: str
    headline: str  # `attention is wrong`
    sentence: str
    share: str  # of the executed tests, in percent
    words: str  # what the bar shows
    bar: Markup


@dataclass(frozen=True)
class FeatureRow:
    """One feature, by target."""

    name: str
    cells: tuple[tuple[str, str], ...]  # text and CSS class


def answers(reports: Sequence[Report], runs: Sequence[Run]) -> list[Answer]:
    """One for each run, the one that passes most of what it supports first."""
    ranked = sorted(range(len(reports)), key=lambda i: -_share(reports[i]))
    return [_answer(i, reports[i], runs[i]) for i in ranked]


def feature_rows(reports: Sequence[Report]) -> list[FeatureRow]:
    """What needs no feature, then every feature that some target supports."""
    plain = [[row for row in report.results if row.executed and not row.features] for report in reports]
    rows = [FeatureRow(PLAIN, tuple(_count([r.failed for r in of]) for of in plain))]
    rows += [FeatureRow(name, tuple(_cell(report, name) for report in reports)) for name in FEATURES]
    return [row for row in rows if any(kind for _, kind in row.cells)]


def _answer(number: int, report: Report, run: Run) -> Answer:
    executed = [row for row in report.results if row.executed]
    passed = sum(row.passed for row in executed)
    known = sum(row.verdict == "xfail" for row in executed)
    numbers = (passed, known, len(executed) - passed - known, len(report.results) - len(executed))
    words = " · ".join(f"{n} {word}" for n, (word, _) in zip(numbers, PARTS, strict=True) if n)
    return Answer(
        run=number,
        name=run.name,
        status=report.status,
        headline=f"{run.name} {WORDS[report.status]}",
        sentence=_sentence(report, run, len(executed), passed, known),
        share=f"{math.floor(1000 * _share(report)) / 10:g} %" if executed else "\u2013",
        words=words,
        bar=_bar(numbers, words),
    )


def _sentence(report: Report, run: Run, executed: int, passed: int, known: int) -> str:
    failed = executed - passed - known
    if report.status == "conformant":
        return f"It passes all {counted(executed, 'test')} of what it supports."
    if report.status == "incomplete":
        return f"All {counted(passed, 'test')} that ran pass, and a part of what it supports did not run."
    if failed and run.suspects and run.suspects[0].sentence:
        first = run.suspects[0]
        return f"{first.sentence} This explains {first.explains} of {counted(first.of, 'failure')}."
    if known and not failed:
        return f"It fails {counted(known, 'test')}, all of them known, with a reason."
    where = f", most of all {named(run.blamed[0].id)}" if run.blamed else ""
    return f"It fails {failed + known} of {counted(executed, 'test')}{where}."


def _share(report: Report) -> float:
    executed = [row for row in report.results if row.executed]
    return sum(row.passed for row in executed) / len(executed) if executed else 0.0


def _bar(numbers: Sequence[int], words: str) -> Markup:
    total, left, parts = sum(numbers) or 1, 0.0, []
    for number, (_, css) in zip(numbers, PARTS, strict=True):
        wide = WIDTH * number / total
        if number:
            parts.append(
                Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="{}"/>').format(
                    css, left, wide, HEIGHT
                )
            )
        left += wide
    return Markup(
        '<svg class="bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, words, Markup("").join(parts))


def _cell(report: Report, feature: str) -> tuple[str, str]:
    found = report.features.get(feature)
    if found is None or found.status == "not claimed":
        return _count([])
    return _count([True] * found.failed + [False] * found.passed)


def _count(failed: Sequence[bool]) -> tuple[str, str]:
    """Tests that pass, or those that fail of all; which of some tests fail is given."""
    if not failed:
        return "\u2013", ""
    return (f"\u2717 {sum(failed)}/{len(failed)}", "x") if any(failed) else (f"\u2713 {len(failed)}", "p")
