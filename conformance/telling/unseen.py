"""Why some failures show no numbers that could be compared."""

from collections import Counter
from collections.abc import Iterable

from conformance.judging.verdict import Row
from conformance.running.stored_output import TOO_LARGE


def why_unseen(rows: Iterable[Row]) -> str:
    """Why failures show no numbers, each reason with how many there are, or all that there may be."""
    failed = [row for row in rows if row.failed]
    ends: Counter[str] = Counter(row.judged for row in failed if row.judged in ("crash", "timeout"))
    ends.update(_left_out(row) for row in failed if row.judged == "fail" and row.got_left_out)
    told = {"crash": "a crash", "timeout": "a timeout"}
    reasons = [f"{told.get(why, why)} ({number})" for why, number in ends.most_common()]
    return ", ".join(reasons) or "a crash, a timeout, or an answer too large"


def _left_out(row: Row) -> str:
    """Why an answer is not kept; of those that are too large it does not matter by how much."""
    return (
        "an answer too large to keep"
        if row.got_left_out.endswith(TOO_LARGE)
        else f"of an answer {row.got_left_out}"
    )
