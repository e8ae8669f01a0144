"""A target behind the line protocol, restarted when it dies or hangs."""

import time
from collections.abc import Callable, Sequence

from conformance.errors import UsageError
from conformance.running.answer import Answer, Hello, Question
from conformance.running.process import DiedError, Process, TimedOutError
from conformance.running.protocol import (
    ProtocolError,
    encode,
    parse_answer,
    parse_hello,
    run_message,
    start_message,
)

START_SECONDS = 120.0
"""How long a process may take to start: an import of a large framework on a slow disk."""
FIRST_CASE_SECONDS = 20.0
"""What the first case may take beyond its timeout: lazy imports, the first compilation."""


class Isolated:
    """Asks a target in a process of its own, one question after another."""

    def __init__(
        self, command: Sequence[str], source: str, timeout: float, echo: Callable[[str], None] | None = None
    ) -> None:
        self._command, self._source, self._timeout, self._echo = command, source, timeout, echo
        self._group: frozenset[str] = frozenset()
        self._allowance = FIRST_CASE_SECONDS
        self._broken = ""  # why it cannot be started again
        self._process: Process
        self.hello: Hello = self._start()

    def _start(self) -> Hello:
        """Starts the process, and reads what it says of itself.

        Raises:
            UsageError: it does not start.
        """
        self._process = Process(self._command, self._echo)
        try:
            return parse_hello(self._process.ask(encode(start_message()), START_SECONDS), self._source)
        except DiedError as error:
            raise UsageError(f"{self._source} did not start: {error}") from error
        except TimedOutError as error:
            self._process.kill()
            raise UsageError(f"{self._source} did not start within {START_SECONDS:g} s") from error
        except BaseException:
            self._process.kill()
            raise

    def ask(self, question: Question) -> Answer:
        """The answer to a question, or how the process failed to give one."""
        problem = self._ready(question)
        if problem:
            return Answer("crash", problem)
        line = encode(run_message(question))
        allowed = self._timeout + self._allowance
        self._allowance = 0.0
        began = time.perf_counter()
        try:
            answer = parse_answer(self._process.ask(line, allowed), question.case.id)
        except DiedError as error:
            answer = Answer("crash", str(error))
        except TimedOutError:
            self._process.kill()
            answer = Answer("timeout", f"no answer within {allowed:g} s")
        except ProtocolError as error:
            self._process.kill()  # who knows what it answers next
            answer = Answer("wrong", f"the answer is not of the protocol: {error}")
        return Answer(answer.kind, answer.message, answer.outputs, time.perf_counter() - began)

    def _ready(self, question: Question) -> str:
        """Sees to it that a process of the right group runs; returns what is in the way."""
        if question.group != self._group:
            self._group = question.group
            self.close()
        if not self._broken and not self._process.alive:
            self._process.kill()
            try:
                self._start()
            except UsageError as error:
                self._broken = f"it could not be started again: {error}"
        return self._broken

    def kill(self) -> None:
        """Ends the process at once, whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """Lets the process end."""
        self._process.stop(encode({"cmd": "stop"}))
