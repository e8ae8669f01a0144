"""Wrong answers too large to be kept in a report, asked for once more to be diagnosed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from conformance.judging.judge import judge
from conformance.judging.verdict import Row
from conformance.running.messages import Question
from conformance.running.runner import Asker
from conformance.running.stored_output import TOO_LARGE, keep
from conformance.vectors.case import Case

MOST = 8
"""Rows that are asked for, those of the smallest calls."""
LARGEST = 2**23
"""Characters of base64 that are held of one answer, in memory only."""


def in_full(
    rows: Sequence[Row], cases: Mapping[str, Case], policy: str, start: Callable[[], Asker]
) -> list[Row]:
    """The rows, of which those that were too large to keep hold their outputs, if they fail again; not to be reported.

    `start` gives an asker of the target; it is not called where no row is too large.
    """
    large = [row for row in rows if row.failed and row.got_left_out.endswith(TOO_LARGE)]
    large = sorted(large, key=lambda row: cases[row.case].elements)[:MOST]
    found: dict[tuple[str, str], Row] = {}
    if not large:
        return list(rows)
    asker = start()
    try:
        for row in large:
            answer = asker.ask(Question(cases[row.case], row.dtype))
            if (
                answer.kind == "outputs"
                and judge(cases[row.case], row.dtype, policy, answer.outputs).verdict == "fail"
            ):
                got, left_out = keep(answer.outputs, LARGEST)
                found[row.key] = replace(row, got=got, got_left_out=left_out)
    except BaseException:
        asker.kill()
        raise
    asker.close()
    return [found.get(row.key, row) for row in rows]
