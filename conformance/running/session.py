"""A target that is asked one question at a time, by whoever decides on the order: pytest, say."""

from collections.abc import Iterable
from dataclasses import replace

from conformance.judging.verdict import Row
from conformance.running.answer import Question
from conformance.running.runner import Request, answered, start
from conformance.running.select import select
from conformance.vectors.case import Case


class Session:
    """The questions of a request, and one process that answers them.

    Raises:
        UsageError: the target does not start, or nothing is left to ask.
    """

    def __init__(self, request: Request, cases: Iterable[Case]) -> None:
        self._heard: list[str] = []
        self._asker, hello = start(request, self._heard.append)
        self._accuracy = request.accuracy or hello.accuracy
        try:
            self.questions = select(cases, hello, self._accuracy, request.selection, request.source)
        except BaseException:
            self.close()
            raise
        self._profile = request.selection.profile

    def row(self, question: Question) -> Row:
        """The row of a question; with a profile, what is not supported is an error."""
        self._heard.clear()
        row = answered(question, self._accuracy, self._asker)
        if row.executed or self._profile is None:
            return row
        message = f"{row.message}, which the profile {self._profile} needs"
        return replace(row, verdict="error", message=message)

    @property
    def heard(self) -> str:
        """What the target has written to stderr since it was asked last."""
        return "".join(self._heard)

    def close(self) -> None:
        """Ends the process."""
        self._asker.close()
