"""Several workers on one list of questions: each a process of its own, rows as they come."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from conformance.judging.verdict import Row
from conformance.running.messages import Question
from conformance.running.subprocess_target import Isolated

Answered = Callable[[Question, Isolated], Row]


class Pool:
    """Workers that take questions from one queue, each in a thread that waits for its process.

    A worker that hangs or crashes keeps no other from going on; one that cannot be started leaves its
    question to the others, as long as there are any.
    """

    def __init__(self, workers: Sequence[Isolated], answered: Answered) -> None:
        self._workers, self._answered = workers, answered
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()  # None = go home
        self._found: queue.SimpleQueue[Row | BaseException] = queue.SimpleQueue()
        self._staff = threading.Lock()
        self._working = len(workers)
        self._stopped = False

    def rows(self, questions: Sequence[Question]) -> Iterator[Row]:
        """The row of each question, in the order in which they come.

        However this ends, no process is left behind.
        """
        for question in questions:
            self._questions.put(question)
        threads = [threading.Thread(target=self._work, args=(w,), daemon=True) for w in self._workers]
        for thread in threads:
            thread.start()
        try:
            for _ in questions:
                found = self._found.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        except BaseException:
            self._stopped = True
            for worker in self._workers:
                worker.kill()
            raise
        finally:
            for _ in threads:
                self._questions.put(None)
            for thread in threads:
                thread.join()

    def _work(self, worker: Isolated) -> None:
        try:
            while (question := self._questions.get()) is not None and not self._stopped:
                row = self._answered(question, worker)
                if worker.broken and self._may_leave():
                    self._questions.put(question)
                    return
                self._found.put(row)
            worker.close()
        except BaseException as error:  # whoever listens shall hear of it
            self._found.put(error)

    def _may_leave(self) -> bool:
        """Whether somebody else is there to go on."""
        with self._staff:
            if self._working == 1:
                return False
            self._working -= 1
            return True
