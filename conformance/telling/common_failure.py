"""What most failures say alike: one exception, one wrong type. Its remedy then stands at the end of the run as well."""

from collections import Counter
from collections.abc import Iterable

from conformance.diagnosis.saying import kind
from conformance.judging.verdict import FAILURES, Row

FEW = 3
"""Rows below which their messages can be read one by one."""


def alike(rows: Iterable[Row]) -> str:
    """What at least half of the failures say of a call that gave nothing to measure; empty if nothing."""
    rows = list(rows)
    dead = {dtype for dtype, _ in dead_dtypes(rows)}
    failed = [row for row in rows if row.verdict in FAILURES and row.dtype not in dead]
    told = [(kind(row.message), row) for row in failed if row.error_over_bound is None]
    if not told:
        return ""
    most, count = Counter(words for words, _ in told).most_common(1)[0]
    if count < FEW or 2 * count < len(failed):
        return ""
    first = next(row for words, row in told if words == most)
    return f"most frequent: {first.message} ({count} of {len(failed)} failures)"


def dead_dtypes(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """The dtypes in which every call raises, with their rows; none where no other dtype has a result."""
    executed: dict[str, list[Row]] = {}
    for row in rows:
        if row.executed:
            executed.setdefault(row.dtype, []).append(row)
    dead = [
        (dtype, those)
        for dtype, those in executed.items()
        if len(those) >= FEW and all(row.verdict == "error" for row in those)
    ]
    return dead if len(dead) < len(executed) else []


def dead_lines(rows: Iterable[Row]) -> list[str]:
    """A line for each dtype that seems to have no kernel."""
    return [
        f"{dtype}: all {len(those)} tests raise, first {those[0].message}; "
        f"if there is no kernel for {dtype}, leave it out of `dtypes`"
        for dtype, those in dead_dtypes(rows)
    ]
