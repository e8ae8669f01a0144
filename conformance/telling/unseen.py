"""Why some failures show no numbers that could be compared."""

from collections import Counter
from collections.abc import Iterable

from conformance.judging.verdict import Row


def why_unseen(rows: Iterable[Row]) -> str:
    """Why failures show no numbers, each reason with how many there are, or all that there may be."""
    failed = [row for row in rows if row.failed]
    ends: Counter[str] = Counter(row.judged for row in failed if row.judged in ("crash", "timeout"))
    ends.update(
        f"of an answer {row.got_left_out}" for row in failed if row.judged == "fail" and row.got_left_out
    )
    told = {"crash": "a crash", "timeout": "a timeout"}
    reasons = [f"{told.get(why, why)} ({number})" for why, number in ends.most_common()]
    return ", ".join(reasons) or "a crash, a timeout, or an answer too large"
