"""Passing rows that meet no more than `eager`, where nearly all others meet `fused`: a bug in 16 bits hides there."""

from collections.abc import Iterable, Sequence

import numpy as np

from conformance.diagnosis.facts import conditions
from conformance.diagnosis.failing import Asked
from conformance.judging.verdict import Row
from conformance.telling.terminal import counted
from conformance.vectors.case import Case

MANY = 20
"""Graded rows of a dtype from which on a few others are outliers."""
FEW = 0.2
"""The share of the graded rows up to which they are."""
NAMED = 3
"""Outliers that are named one by one where they have nothing in common."""


def outlier_lines(rows: Iterable[Row], cases: Iterable[Case]) -> list[str]:
    """A line for each dtype of which some passing rows do not meet `fused`, and what these have in common."""
    known = {case.id: case for case in cases}
    graded = [row for row in rows if row.passed and row.grade is not None and row.case in known]
    lines = []
    for dtype in dict.fromkeys(row.dtype for row in graded):
        those = [row for row in graded if row.dtype == dtype]
        out = np.array([row.grade != "fused" for row in those])
        if len(those) >= MANY and 0 < out.sum() <= FEW * len(those):
            asked = [Asked(known[row.case], row.dtype) for row in those]
            lines.append(
                f"{dtype}: {int((~out).sum())} of {counted(len(those), 'passing test')} meet `fused`; "
                f"the other {int(out.sum())} meet `eager` only, {_common(those, asked, out)}"
            )
    return lines


def _common(rows: Sequence[Row], asked: Sequence[Asked], out: np.ndarray) -> str:
    """The narrowest condition that holds for all of them, or some of their names."""
    holding = [(int(holds.sum()), words) for words, holds, _ in conditions(asked, out) if holds[out].all()]
    rare = [each for each in holding if each[0] <= len(rows) / 2]
    if rare and out.sum() > 1:
        number, words = min(rare, key=lambda each: each[0])
        return f"all {words} ({number} tests are)"
    names = [row.case for row, outside in zip(rows, out, strict=True) if outside]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
