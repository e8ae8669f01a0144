"""A wrong answer, asked for once more: whether it is the same, which tells a race from a mistake."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.judging.measure import allowed, held_rows
from conformance.judging.verdict import Row
from conformance.running.layouts import Layouts
from conformance.running.messages import Answer, Question
from conformance.vectors.case import Array

MOST = 6
"""Wrong answers of a run that are asked for once more."""
OTHER = "another answer when asked again (IND-4)"


class Again:
    """Asks for the first wrong answers of a run once more, and in another layout."""

    def __init__(self, layouts: Layouts | None = None) -> None:
        self._left = MOST
        self._layouts = layouts or Layouts()

    def look(
        self, question: Question, answer: Answer, row: Row, ask: Callable[[Question], Answer], policy: str
    ) -> Row:
        """The row of a wrong answer, which says so where a second one is another."""
        self._layouts.look(question, answer, row, ask, policy)
        if row.verdict != "fail" or answer.kind != "outputs" or question.case.raises or not self._left:
            return row
        self._left -= 1
        second = ask(question)
        if second.kind in ("timeout", "crash") or same(question, answer, second, policy):
            return row
        return replace(row, message=f"{row.message}; {OTHER}")


def same(question: Question, one: Answer, other: Answer, policy: str) -> bool:
    """Whether two answers are one but for roundings: atomic sums may differ in the last digits."""
    if one.kind != other.kind or one.outputs.keys() != other.outputs.keys():
        return False
    case, dtype = question.case, question.dtype
    for name, array in one.outputs.items():
        again = other.outputs[name]
        if array.shape != again.shape or array.dtype != again.dtype:
            return False
        golden = case.expected.get(name)
        if golden is None or golden.shape != array.shape:
            if not _equal(array, again, np.zeros(())):
                return False
            continue
        limit = allowed(golden.bounds[dtype][case.policy(dtype, policy)])
        if not _equal(held_rows(name, golden, array), held_rows(name, golden, again), limit):
            return False
    return True


def _equal(one: Array, two: Array, limit: Array) -> bool:
    with np.errstate(all="ignore"):
        a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (one, two))
        near = np.abs(a - b) <= limit
    return bool(((a == b) | (np.isnan(a) & np.isnan(b)) | near).all())


def unsteady(message: str) -> bool:
    """Whether a row says that a second answer was another one."""
    return message.endswith(OTHER)
