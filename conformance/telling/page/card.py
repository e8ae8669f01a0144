"""A picture to share: of each target one sentence and one bar, and a link to the whole report."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import escape, quoteattr

from conformance.errors import UsageError
from conformance.telling.inventory import read_defects
from conformance.telling.page.answer import Answer, answers
from conformance.telling.page.runs import apart, run_of
from conformance.telling.report import Report
from conformance.telling.requirements import read_requirements
from conformance.telling.terminal import safe, shorten
from conformance.vectors import load
from conformance.version import SPEC_VERSION

WIDTH, HEIGHT, MARGIN = 1200, 630, 64
SHOWN = 7
"""Targets that have room; the rest is counted."""
TITLE, TEXT, LINES = 44, 74, 4
"""Characters of a line of the headline and of a sentence, and how many lines a sentence has."""
COLOURS = ("#6fd699", "#f5cf6b", "#ff9a90", "#3d444f")
"""Of pass, known, fail and not supported, on the dark ground."""

FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" \
aria-label={label}>
<style>
text{{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#e4e7ec}} .d{{fill:#a3abb8}}
</style>
<rect width="{width}" height="{height}" fill="#14171c"/>
<rect width="{width}" height="10" fill="{accent}"/>
<text x="{margin}" y="76" font-size="24" class="d">Multi-head attention, tested</text>
{body}
<text x="{margin}" y="594" font-size="22" class="d">{foot}</text>
</svg>
"""


def card(reports: Sequence[Report], link: str = "") -> str:
    """The picture as SVG, 1200 x 630, every text of it escaped.

    Args:
        reports: one or more runs.
        link: the address of the whole report; empty where there is none.
    """
    texts = {requirement.id: requirement for requirement in read_requirements()}
    defects = {defect.id: defect for defect in read_defects()}
    sha256 = load.load_vectors().sha256
    runs = apart([run_of(i, report, texts, defects, sha256) for i, report in enumerate(reports, 1)])
    found = answers(reports, runs)
    body = _one(found[0], reports[0]) if len(found) == 1 else _many(found, reports)
    title = found[0].headline if len(found) == 1 else f"{len(found)} implementations of attention"
    version = f"specification {SPEC_VERSION}"
    linked = f'<a href={quoteattr(link)}><tspan fill="#8ab4f8">{_text(link, 70)}</tspan></a>' if link else ""
    accent = {"conformant": COLOURS[0], "incomplete": COLOURS[1]}.get(found[0].status, COLOURS[2])
    return FRAME.format(
        width=WIDTH,
        height=HEIGHT,
        margin=MARGIN,
        label=quoteattr(safe(shorten(title, 200))),
        accent=accent if len(found) == 1 else "#8ab4f8",
        body=body,
        foot=f"{linked} · {version}" if linked else version,
    )


def check_card(path: Path | None, link: str) -> None:
    """Sees to it that a picture can be written under this name, with this link.

    Raises:
        UsageError: the name does not end in `.svg`, there is a link and no picture, or it is not an address.
    """
    if path is None:
        if link:
            raise UsageError("--link is part of a card: give --card OUT.svg too")
        return
    if path.suffix.lower() != ".svg":
        raise UsageError(
            f"--card {str(path)!r} has an unknown ending: the card is SVG, give a name that ends in .svg"
        )
    parts = urlsplit(link)
    if link and not (parts.scheme in ("http", "https") and parts.netloc):
        raise UsageError(f"--link {shorten(link)!r} is not an address: give one that begins with https://")


def _one(answer: Answer, report: Report) -> str:
    """Headline, sentence, a wide bar and its words."""
    lines, y = [], 150
    for line in textwrap.wrap(safe(answer.headline), TITLE)[:2]:
        lines.append(f'<text x="{MARGIN}" y="{y}" font-size="50" font-weight="700">{escape(line)}</text>')
        y += 60
    y += 12
    for line in textwrap.wrap(safe(answer.sentence), TEXT, max_lines=LINES, placeholder=" ..."):
        lines.append(f'<text x="{MARGIN}" y="{y}" font-size="29">{escape(line)}</text>')
        y += 42
    lines.append(_bar(report, MARGIN, y, WIDTH - 2 * MARGIN, 56))
    lines.append(f'<text x="{MARGIN}" y="{y + 98}" font-size="26" class="d">{_text(answer.words, 76)}</text>')
    return "\n".join(lines)


def _many(found: Sequence[Answer], reports: Sequence[Report]) -> str:
    """A line for each target: name, share and bar; those that fail least first."""
    lines = [
        f'<text x="{MARGIN}" y="136" font-size="36" font-weight="700">'
        f"{len(found)} implementations, by share of tests that pass</text>"
    ]
    y = 196
    for answer in found[:SHOWN]:
        lines += [
            f'<text x="{MARGIN}" y="{y}" font-size="26">{_text(answer.name, 24)}</text>',
            f'<text x="560" y="{y}" font-size="26" text-anchor="end">{_text(answer.share, 12)}</text>',
            _bar(reports[answer.run], 590, y - 22, WIDTH - MARGIN - 590, 26),
        ]
        y += 50
    left = len(found) - SHOWN
    if left > 0:
        lines.append(f'<text x="{MARGIN}" y="{y}" font-size="24" class="d">and {left} more</text>')
    return "\n".join(lines)


def _bar(report: Report, x: float, y: float, width: float, height: float) -> str:
    """Pass, known and fail of the tests that ran: what is not supported says nothing of how good a target is."""
    executed = [row for row in report.results if row.executed]
    passed, known = (sum(row.verdict == word for row in executed) for word in ("pass", "xfail"))
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{COLOURS[3]}"/>']
    for number, colour in zip((passed, known, len(executed) - passed - known), COLOURS, strict=False):
        wide = width * number / len(executed) if executed else 0.0
        if number:
            wide_enough = max(wide, 3.0)  # one failure of a thousand is seen
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide_enough:.1f}" height="{height}" fill="{colour}"/>'
            )
        x += wide
    return "".join(parts)


def _text(text: str, limit: int) -> str:
    return escape(safe(shorten(text, limit)))
