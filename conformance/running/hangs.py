"""When to give up on a target that hangs: each of its cases would cost its timeout, and the start of a process."""

from conformance.judging.verdict import Row

MOST = 5
"""Rows in a row without an answer in time, for each worker, after which no more are asked: one case has four dtypes."""


class Hangs:
    """Counts the rows that came without an answer in time, one after another."""

    def __init__(self, workers: int = 1) -> None:
        self._most, self._number = MOST * workers, 0

    def take(self, row: Row) -> None:
        """Takes in the next row; what the target was not asked and what a baseline knows to hang say nothing."""
        if row.verdict == "timeout":
            self._number += 1
        elif row.executed and row.judged != "timeout":
            self._number = 0

    @property
    def too_many(self) -> bool:
        """Whether nothing else is to be expected of the target."""
        return self._number >= self._most

    @property
    def why(self) -> str:
        """That it is so, in words."""
        return f"{self._number} tests in a row timed out"
