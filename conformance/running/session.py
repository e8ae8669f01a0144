"""A target that is asked one question at a time, by whoever decides on the order: pytest, say."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from conformance.judging.verdict import Row
from conformance.running.again import Again
from conformance.running.hangs import Hangs
from conformance.running.messages import Answer, Question
from conformance.running.request import Request
from conformance.running.runner import answered, row_of, start
from conformance.running.select import select
from conformance.vectors.case import Case

MOST_CHUNKS = 1000
"""How much of what a target writes to stderr during one question is kept: the end of it, 8 KiB a chunk."""


class Session:
    """The questions of a request, and one process that answers them.

    Raises:
        UsageError: the target does not start, or nothing is left to ask.
    """

    def __init__(self, request: Request, cases: Iterable[Case]) -> None:
        self._heard: deque[str] = deque(maxlen=MOST_CHUNKS)
        self.cases = tuple(cases)
        self._asker, hello = start(request, self._heard.append)
        self.accuracy = request.accuracy or hello.accuracy
        try:
            self.questions = select(self.cases, hello, self.accuracy, request.selection, request.source)
        except BaseException:
            self.close()
            raise
        self._profile, self._baseline = request.selection.profile, request.baseline
        self._hangs, self._again = Hangs(), Again()
        self.rows: list[Row] = []

    def row(self, question: Question) -> Row:
        """The row of a question as the baseline has it; with a profile, what is not supported is an error.

        Where many in a row timed out, those that follow fail without being asked.
        """
        self._heard.clear()
        if self._hangs.too_many and not question.unclaimed:
            row = row_of(question, Answer("timeout", f"not run: {self._hangs.why}"))
            self.rows.append(row)
            return row
        row = answered(question, self.accuracy, self._asker, self._again)
        if not row.executed and self._profile is not None:
            message = f"{row.message}, which the profile {self._profile} needs"
            row = replace(row, verdict="error", message=message)
        if self._baseline is not None:
            row = self._baseline.seen(row)
        self._hangs.take(row)
        self.rows.append(row)
        return row

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the baseline after what was asked so far, apart from rows that pass against it."""
        if self._baseline is None:
            return ()
        held = {case.id: case.judged_dtypes(self.accuracy) for case in self.cases}
        return self._baseline.problems(self.rows, held, {row.key for row in self.rows})

    @property
    def heard(self) -> str:
        """What the target has written to stderr since it was asked last."""
        return "".join(self._heard)

    def close(self) -> None:
        """Ends the process."""
        self._asker.close()
