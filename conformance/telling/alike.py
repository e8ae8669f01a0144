"""What most failures say alike: one exception, one wrong type. Its remedy then stands at the end of the run as well."""

from collections import Counter
from collections.abc import Iterable

from conformance.diagnosis.saying import kind
from conformance.judging.verdict import FAILURES, Row

FEW = 3
"""Rows below which their messages can be read one by one."""


def alike(rows: Iterable[Row]) -> str:
    """What at least half of the failures say of a call that gave nothing to measure; empty if nothing."""
    failed = [row for row in rows if row.verdict in FAILURES]
    told = [(kind(row.message), row) for row in failed if row.error_over_bound is None]
    if not told:
        return ""
    most, count = Counter(words for words, _ in told).most_common(1)[0]
    if count < FEW or 2 * count < len(failed):
        return ""
    first = next(row for words, row in told if words == most)
    return f"most often: {first.message} ({count} of {len(failed)} failures)"
