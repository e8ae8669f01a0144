"""Keeps reports small: of all that failing rows returned only so much is written."""

from collections.abc import Sequence
from dataclasses import replace

from conformance.judging.verdict import Row

MOST_OF_A_REPORT = 4 * 1024 * 1024
"""Characters of base64 that are kept of all wrong answers of a run."""


def within(rows: Sequence[Row], most: int = MOST_OF_A_REPORT) -> tuple[Row, ...]:
    """The rows in their order; the largest answers are left out, which their rows say, so that the rest fits."""
    sizes = {number: sum(len(got.data) for got in row.got) for number, row in enumerate(rows) if row.got}
    kept, total = set(), 0
    for number in sorted(sizes, key=lambda number: sizes[number]):
        total += sizes[number]
        if total > most:
            break
        kept.add(number)
    why = f"the answers of this report are more than {most} characters in base64, the smallest are kept"
    return tuple(
        replace(row, got=(), got_left_out=why) if number in sizes and number not in kept else row
        for number, row in enumerate(rows)
    )
