"""A run: questions to a target, answers to the judge, rows to whoever listens."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from conformance.judging.judge import judge
from conformance.judging.verdict import Row, Verdict
from conformance.running.again import Again
from conformance.running.aliasing import Previous
from conformance.running.arrays import AGAIN
from conformance.running.changes import alike, changed
from conformance.running.events import Event, GaveUp, Noticed, Started
from conformance.running.hangs import Hangs
from conformance.running.invoke import call
from conformance.running.layouts import Layouts
from conformance.running.log_base import answered as in_natural
from conformance.running.log_base import asked as in_base
from conformance.running.messages import Answer, AnswerKind, Hello, Question
from conformance.running.pool import Pool
from conformance.running.process import worker_command
from conformance.running.protocol import WRITE_ONE
from conformance.running.request import Request
from conformance.running.select import DECLARED, select
from conformance.running.stored_output import keep
from conformance.running.subprocess_target import Isolated
from conformance.running.target import Target, adopt, load
from conformance.running.variants import unlike, variant, with_variants
from conformance.vectors.case import Case

OTHERS = 3
"""How many variants are drawn to find one that differs from another."""


VERDICT_OF: dict[AnswerKind, Verdict] = {
    "outputs": "fail",  # until the judge says otherwise
    "wrong": "fail",
    "error": "error",
    "crash": "crash",
    "timeout": "timeout",
    "unsupported": "unsupported",
}


class Asker(Protocol):
    """Whatever gets answers to questions."""

    def ask(self, question: Question) -> Answer:
        """The answer to one question."""

    def kill(self) -> None:
        """Ends it at once."""

    def close(self) -> str:
        """Ends it, and returns what it said beyond its answers."""


class InProcess:
    """Asks a target in this process: no timeout, and a crash takes everything with it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._previous = Previous()

    def ask(self, question: Question) -> Answer:
        """The answer to a question."""
        base = self._target.hello.lse_base
        case = in_base(question, base).case
        began = time.perf_counter()
        answer = call(
            self._target,
            case.operation,
            case.operands(question.dtype),
            case.options,
            case.memory,
            case.repeat,
            previous=self._previous,
        )
        return replace(in_natural(answer, base), seconds=time.perf_counter() - began)

    def kill(self) -> None:
        """Nothing is left to end."""

    def close(self) -> str:
        """Nothing is left to end."""
        return ""


def run(
    request: Request,
    cases: Iterable[Case],
    echo: Callable[[str], None] | None = None,
    asking: Callable[[Question], None] | None = None,
) -> Iterator[Event]:
    """Runs cases against a target; `echo` gets what the target's process writes to stderr, `asking` what is asked now.

    Rows come as they are found: with several workers in no particular order. Where many in a row have no answer in
    time, those that are left are not asked.

    Raises:
        UsageError: the target does not start, or nothing is left to run.
    """
    asker, hello = start(request, echo)
    try:
        accuracy = request.accuracy or hello.accuracy
        questions = select(cases, hello, accuracy, request.selection, request.source)
        if request.fresh is not None:
            questions = with_variants(questions, request.fresh)
        left = [question for question in questions if (question.case.id, question.dtype) not in request.done]
        yield Started(
            hello,
            request.source,
            accuracy,
            total=len(questions),
            done=len(questions) - len(left),
            varied=frozenset((q.case.id, q.dtype) for q in questions if q.seed),
        )
        hangs, seen, layouts, noticed = Hangs(request.workers), set(), Layouts(), False
        how = _How(accuracy, Again(layouts), asking)
        with closing(_rows(request, left, how, asker, echo)) as rows:
            for found in rows:
                if layouts.told and not noticed:
                    noticed = True
                    yield Noticed(layouts.told)
                row = request.baseline.seen(found) if request.baseline else found
                yield row
                seen.add(row.key)
                hangs.take(row)
                if hangs.too_many or (row.unexpected and request.stop_at_failure):
                    break
        if hangs.too_many and not request.stop_at_failure:
            rest = [question for question in left if (question.case.id, question.dtype) not in seen]
            yield from (answered(question, accuracy, asker) for question in rest if question.unclaimed)
            if asked := [question for question in rest if not question.unclaimed]:
                yield GaveUp(hangs.why, len(asked))
    except BaseException:
        asker.kill()
        raise
    asker.close()


def start(request: Request, echo: Callable[[str], None] | None) -> tuple[Asker, Hello]:
    """Makes ready whatever the request wants asked, and hears what it says of itself."""
    operation = request.selection.operation
    if not request.command and not isinstance(request.target, str):
        target = adopt(request.target, request.source, operation, request.device)
        return InProcess(target), target.hello
    if request.in_process:
        target = load(request.target, operation, request.device)
        return InProcess(target), target.hello
    worker = isolated(request, echo)
    return worker, worker.start()


def isolated(request: Request, echo: Callable[[str], None] | None) -> Isolated:
    """A worker that is yet to start."""
    command = request.command or worker_command(
        request.target, request.selection.operation, request.device, request.path
    )
    remedy = WRITE_ONE if request.command else ""
    return Isolated(command, request.source, request.timeout, echo, remedy)


@dataclass(frozen=True)
class _How:
    """How every question of a run is put and judged."""

    accuracy: str
    again: Again
    asking: Callable[[Question], None] | None

    def answered(self, question: Question, asker: Asker) -> Row:
        """The row of a question."""
        if self.asking is not None and not question.unclaimed:
            self.asking(question)
        return answered(question, self.accuracy, asker, self.again)


def _rows(
    request: Request,
    questions: Sequence[Question],
    how: _How,
    asker: Asker,
    echo: Callable[[str], None] | None,
) -> Generator[Row, None, None]:
    """The rows of the questions, from one asker or from a pool of which it is the first."""
    if not isinstance(asker, Isolated) or min(request.workers, len(questions)) == 1:
        last = max((n for n, question in enumerate(questions) if not question.unclaimed), default=None)
        for number, question in enumerate(questions):
            row = how.answered(question, asker)
            yield ended(row, asker.close()) if number == last else row
        return
    others = [isolated(request, echo) for _ in range(min(request.workers, len(questions)) - 1)]
    yield from Pool([asker, *others], how.answered).rows(questions)


def ended(row: Row, beyond: str) -> Row:
    """The last row that was asked, which answers for what the program said after it."""
    if not beyond or row.failed:
        return row
    return replace(row, verdict="fail", message=beyond, grade=None)


def answered(question: Question, accuracy: str, asker: Asker, again: Again | None = None) -> Row:
    """The row of a question; where a variant goes with it, both have to be answered (CONF-16)."""
    row = answered_once(question, accuracy, asker, again)
    if row.verdict != "pass" or not question.seed:
        return row
    return answered_again(question, accuracy, asker, row)


def answered_again(question: Question, accuracy: str, asker: Asker, row: Row) -> Row:
    """The row of a case after its variant was asked: after a call that differs next to nothing, and twice.

    The first of the three has no stored answer, so that it only has to have one. The second lies where the first
    lay, with other numbers; the third elsewhere (IND-4).
    """
    stored, made = question.case, variant(question.case, question.seed)
    case, question = made.case, replace(question, case=made.case)
    other = changed(case, question.changed, Random(question.seed)) if question.changed else None
    if other is None:
        again = answered_once(question, accuracy, asker)
        return row if again.verdict == "pass" else unlike(row, again, made)
    before = asker.ask(replace(question, case=other.case))
    if before.kind not in ("outputs", "unsupported"):
        failed = row_of(question, before)
        return unlike(row, failed, made, f"does not answer its variant in which {other.words}")
    there = dict.fromkeys((name for name in case.inputs if name not in case.memory), AGAIN)
    answer = asker.ask(replace(question, case=replace(case, memory={**case.memory, **there})))
    again = judged(question, accuracy, answer)
    if again.verdict != "pass":
        same = answer.kind == "outputs" and alike(before.outputs, answer.outputs)
        if same and _answers_another(question, accuracy, asker, stored):
            return unlike(
                row, again, made, f"gives the answer of the call before, in which {other.words}", "IND-4"
            )
        return unlike(row, again, made)
    again = answered_once(question, accuracy, asker)
    return row if again.verdict == "pass" else unlike(row, again, made, "not the same twice", "IND-4")


def _answers_another(question: Question, accuracy: str, asker: Asker, stored: Case) -> bool:
    """Whether another variant is answered, or there is none, so that only the call before can be to blame."""
    others = (variant(stored, f"{question.seed}/{n}").case for n in range(OTHERS))
    other = next((o for o in others if not alike(o.inputs, question.case.inputs)), None)
    return other is None or answered_once(replace(question, case=other), accuracy, asker).verdict == "pass"


def answered_once(question: Question, accuracy: str, asker: Asker, again: Again | None = None) -> Row:
    """The row of a question, asked if the target claims it."""
    if question.unclaimed:
        return row_of(question, Answer("unsupported", question.unclaimed))
    answer = asker.ask(question)
    if answer.kind == "unsupported" and answer.message.startswith(DECLARED):
        answer = replace(answer, message=f"says: {answer.message}")  # those words are the suite's own
    row = judged(question, accuracy, answer)
    return again.look(question, answer, row, asker.ask, accuracy) if again else row


def judged(question: Question, accuracy: str, answer: Answer) -> Row:
    """The row of an answer."""
    case, dtype = question.case, question.dtype
    row = row_of(question, answer)
    if answer.kind == "error" and case.raises:
        return replace(row, verdict="pass")
    if answer.kind != "outputs":
        return row
    judgement = judge(case, dtype, accuracy, answer.outputs)
    got, left_out = keep(answer.outputs) if judgement.verdict == "fail" else ((), "")
    return replace(
        row,
        verdict=judgement.verdict,
        message=judgement.message,
        error_over_bound=judgement.error_over_bound,
        rms_over_sigma=judgement.rms_over_sigma,
        grade=judgement.grade,
        worst=judgement.worst,
        got=got,
        got_left_out=left_out,
    )


def row_of(question: Question, answer: Answer) -> Row:
    """The row of an answer before its outputs are judged."""
    case = question.case
    return Row(
        case=case.id,
        operation=case.operation,
        dtype=question.dtype,
        verdict=VERDICT_OF[answer.kind],
        covers=case.covers,
        features=case.features,
        message=answer.message,
        seconds=answer.seconds,
    )
