"""The pool with workers that are no processes: each question is answered once, each worker closed once."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.messages import Question
from conformance.running.pool import Pool
from conformance.running.subprocess_target import Isolated
from conformance.vectors.case import Case

Make = Callable[..., Case]


class Fake:
    """Notes what is done with it; broken from its `lasts`-th question on."""

    def __init__(self, lasts: int = 1000) -> None:
        self.asked: list[str] = []
        self.closed = self.killed = 0
        self._lasts = lasts

    @property
    def broken(self) -> bool:
        return len(self.asked) >= self._lasts

    def close(self) -> None:
        self.closed += 1

    def kill(self) -> None:
        self.killed += 1


def answered(question: Question, worker: Isolated) -> Row:
    cast(Fake, worker).asked.append(question.case.id)
    verdict: Any = "crash" if worker.broken else "pass"
    return Row(question.case.id, SDPA, question.dtype, verdict, (), ())


def questions(make_case: Make, number: int) -> list[Question]:
    return [Question(make_case(f"core/n{i}"), "float32") for i in range(number)]


def pool(*fakes: Fake, how: Callable[[Question, Isolated], Row] = answered) -> Pool:
    return Pool(cast(list[Isolated], list(fakes)), how)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("number", [0, 1, 40])
def test_each_question_is_answered_once_and_each_worker_closed_once(
    make_case: Make, workers: int, number: int
) -> None:
    fakes = [Fake() for _ in range(workers)]
    asked = questions(make_case, number)
    rows = list(pool(*fakes).rows(asked))
    assert sorted(row.case for row in rows) == sorted(q.case.id for q in asked)
    assert sum(len(fake.asked) for fake in fakes) == number
    assert [(fake.closed, fake.killed) for fake in fakes] == [(1, 0)] * workers


def test_a_question_of_a_worker_that_breaks_goes_to_another(make_case: Make) -> None:
    asked = questions(make_case, 30)
    rows = list(pool(Fake(1), Fake(1), Fake()).rows(asked))
    assert sorted(row.case for row in rows) == sorted(q.case.id for q in asked)
    assert {row.verdict for row in rows} == {"pass"}


def test_the_last_worker_that_breaks_answers_for_the_rest(make_case: Make) -> None:
    rows = list(pool(Fake(3), Fake(1)).rows(questions(make_case, 30)))
    assert len(rows) == 30
    assert {row.verdict for row in rows} == {"pass", "crash"}


def test_nothing_is_asked_after_whoever_listens_has_stopped(make_case: Make) -> None:
    go_on, asked = threading.Event(), list[str]()

    def slow(question: Question, worker: Isolated) -> Row:
        asked.append(question.case.id)
        if len(asked) > 1:
            go_on.wait(5.0)
        return answered(question, worker)

    class Ended(Fake):
        def kill(self) -> None:
            super().kill()
            go_on.set()

    fakes = [Ended(), Ended()]
    rows = pool(*fakes, how=slow).rows(questions(make_case, 30))
    next(rows)
    rows.close()
    assert len(asked) <= 3
    assert [fake.killed for fake in fakes] == [1, 1]


def test_a_fault_in_a_worker_s_thread_is_raised(make_case: Make) -> None:
    def faulty(question: Question, worker: Isolated) -> Row:
        raise RuntimeError("of our own")

    with pytest.raises(RuntimeError, match="of our own"):
        list(pool(Fake(), Fake(), how=faulty).rows(questions(make_case, 3)))
