"""All errors of all runs as a strip plot, and the same in numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.telling.page.words import number
from conformance.telling.report import Report

LOW, HIGH = -4, 3
"""Decades that are shown; what lies beyond stands at the edge."""
LEFT, WIDTH, STRIP, TOP = 132, 824, 16, 22
"""Pixels: where the axis begins, how long it is, the height of a strip, and of what stands above them."""
GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, fill a strip evenly."""


@dataclass(frozen=True)
class Spread:
    """The errors of one run in one dtype, as shares of what is allowed."""

    run: int
    dtype: str
    rows: int
    exact: int  # with no error at all
    median: str
    most: str  # the largest of a row that passes
    beyond: int  # rows above 1


def spreads(reports: Sequence[Report]) -> list[Spread]:
    """One entry for each strip, in the order of the plot."""
    return [_spread(run, dtype, rows) for dtype, run, rows in _strips(reports)]


def strip_plot(reports: Sequence[Report]) -> Markup:
    """The plot: a dot for each row that passes, a cross for each that does not."""
    strips = list(_strips(reports))
    height = TOP + len(strips) * STRIP + len({dtype for dtype, _, _ in strips}) * 8 + 18
    parts, y, last = [], float(TOP), ""
    for dtype, run, rows in strips:
        if dtype != last:
            y += 8
            parts.append(Markup('<text x="0" y="{}">{}</text>').format(y + 12, dtype))
            last = dtype
        parts.append(Markup('<text class="run" x="{}" y="{}">{}</text>').format(LEFT - 10, y + 12, run + 1))
        parts += [
            Markup('<path class="{}" d="{}"/>').format(css, _dots(those, y, mark))
            for css, mark, those in (
                ("dots", "h0", [r for r in rows if not r.failed]),
                ("crosses", "m-2.5-2.5l5 5m0-5l-5 5", [r for r in rows if r.failed]),
            )
            if those
        ]
        y += STRIP
    label = (
        "error divided by tolerance of every test, by dtype and run; the table below has the same in numbers"
    )
    return Markup('<svg class="strips" viewBox="0 0 1000 {}" role="img" aria-label="{}">{}{}</svg>').format(
        height, label, _axis(y), Markup("").join(parts)
    )


def _strips(reports: Sequence[Report]) -> Iterable[tuple[str, int, list[Row]]]:
    for dtype in DTYPES:
        for run, report in enumerate(reports):
            rows = [r for r in report.results if r.dtype == dtype and r.error_over_bound is not None]
            if rows:
                yield dtype, run, rows


def _axis(bottom: float) -> Markup:
    parts = []
    for decade in range(LOW, HIGH + 1):
        x = _place(10.0**decade)
        word = {LOW: f"\u2264 1e{LOW}", 0: "1 = tolerance", HIGH: f"\u2265 1e{HIGH}"}.get(
            decade, f"1e{decade}"
        )
        css = "limit" if decade == 0 else "grid"
        parts.append(
            Markup(
                '<path class="{}" d="M{} {}V{}"/><text class="tick" x="{}" y="{}">{}</text>'
                '<text class="tick" x="{}" y="{}">{}</text>'
            ).format(css, x, TOP, bottom, x, TOP - 6, word, x, bottom + 14, word)
        )
    return Markup("").join(parts)


def _place(error: float) -> float:
    """Where an error lies on the axis."""
    decade = LOW if error <= 0 else HIGH if not math.isfinite(error) else math.log10(error)
    share = (min(max(decade, LOW), HIGH) - LOW) / (HIGH - LOW)
    return round(LEFT + share * WIDTH, 1)


def _dots(rows: Iterable[Row], top: float, mark: str) -> str:
    places = {
        (_place(row.error_over_bound or 0.0), round(top + 3 + (i * GOLDEN % 1) * (STRIP - 6)))
        for i, row in enumerate(rows)
    }
    return "".join(f"M{x:g} {y}{mark}" for x, y in sorted(places))


def _spread(run: int, dtype: str, rows: list[Row]) -> Spread:
    errors = sorted(row.error_over_bound or 0.0 for row in rows)
    passing = [row.error_over_bound or 0.0 for row in rows if not row.failed]
    return Spread(
        run=run,
        dtype=dtype,
        rows=len(rows),
        exact=errors.count(0.0),
        median=number(errors[len(errors) // 2], 2),
        most=number(max(passing, default=None), 2),
        beyond=sum(not error <= 1 for error in errors),
    )
