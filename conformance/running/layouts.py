"""Whether wrong answers are right with heads and length exchanged, tried on the first of them."""

from collections.abc import Callable
from dataclasses import replace

from conformance.judging.layout import HEADS, LAID, LENGTH, OTHER, WANTED, exchanged_operands, right_exchanged
from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.messages import Answer, Question
from conformance.vectors.case import Case

TRIED = 3
"""Wrong answers of a run that are looked at so."""


class Layouts:
    """Looks at the first wrong answers of a run; `told` says what was found, and is empty until then."""

    def __init__(self) -> None:
        self._left = TRIED
        self.told = ""

    def look(
        self, question: Question, answer: Answer, row: Row, ask: Callable[[Question], Answer], policy: str
    ) -> None:
        """Looks at a wrong answer, for which the call is made again with arrays (..., length, heads, width)."""
        case = question.case
        if self.told or not self._left or row.verdict not in ("fail", "error") or not _tells(case):
            return
        self._left -= 1
        where = f"{case.id} {question.dtype}"
        if _right(question, answer, policy):
            self.told = (
                f"the output for {where} is right with its heads and length exchanged: return {WANTED}"
            )
        elif _right(question, ask(_exchanged(question)), policy):
            self.told = (
                f"the answer to {where} is right in the layout {OTHER}: "
                'set layout = "blhd", or leave it out if you have set it'
            )


def _tells(case: Case) -> bool:
    """Whether the layout of a call shows in its answer, and nothing but its operands has one."""
    shapes = case.shapes
    return (
        case.operation == SDPA
        and not (case.raises or case.memory or "past_key" in shapes)
        and set(case.expected) == {"output"}
        and all(len(shapes[name]) > 2 for name in LAID)
        and shapes["query"][HEADS] > 1
        and shapes["query"][LENGTH] > 1
    )


def _exchanged(question: Question) -> Question:
    """The question with heads and length of its operands exchanged."""
    case = question.case
    return replace(question, case=replace(case, inputs=exchanged_operands(case.inputs)))


def _right(question: Question, answer: Answer, policy: str) -> bool:
    """Whether an answer is right once heads and length of its output are exchanged."""
    return answer.kind == "outputs" and right_exchanged(question.case, question.dtype, policy, answer.outputs)
