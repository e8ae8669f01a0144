"""A target behind the line protocol, restarted when it dies or hangs."""

import threading
import time
from collections.abc import Callable, Sequence

from conformance.errors import UsageError
from conformance.running.log_base import NATURAL, answered, asked
from conformance.running.messages import Answer, Hello, Question
from conformance.running.process import DiedError, Process, TimedOutError
from conformance.running.protocol import (
    WRITE_ONE,
    ProtocolError,
    encode,
    parse_answer,
    parse_hello,
    run_message,
    start_message,
)
from conformance.running.text_limits import first_line

START_SECONDS = 120.0
"""How long a process may take to start: an import of a large framework on a slow disk."""
FIRST_CASE_SECONDS = 20.0
"""What the first case of each process may take beyond its timeout: lazy imports, the first compilation."""


class Isolated:
    """Asks a target in a process of its own, one question after another; the first one starts it.

    `remedy` is what to do about a process that says nothing when it is started.
    """

    def __init__(
        self,
        command: Sequence[str],
        source: str,
        timeout: float,
        echo: Callable[[str], None] | None = None,
        remedy: str = "",
    ) -> None:
        self._remedy = remedy
        self._command, self._source, self._timeout, self._echo = command, source, timeout, echo
        self._group: frozenset[str] = frozenset()
        self._allowance = 0.0
        self._base = NATURAL
        self._broken = ""  # why it cannot be started (again)
        self._process: Process | None = None
        self._starting = threading.Lock()  # held while a process is made, so that none is made after the end
        self._ended = False

    @property
    def broken(self) -> bool:
        """Whether its process cannot be started any more."""
        return bool(self._broken)

    def start(self) -> Hello:
        """Starts the process, and reads what it says of itself.

        Raises:
            UsageError: it does not start.
        """
        with self._starting:
            if self._ended:
                raise UsageError(f"{self._source} was ended")
            process = self._process = Process(self._command, self._echo)
            self._allowance = FIRST_CASE_SECONDS
        try:
            hello = parse_hello(process.ask(encode(start_message()), START_SECONDS), self._source)
            self._base = hello.lse_base
            return hello
        except ProtocolError as error:
            process.kill()
            raise UsageError(
                f"{self._source} sent an invalid reply to `start`: {error}{WRITE_ONE}"
            ) from error
        except DiedError as error:
            remedy = self._remedy if error.silent else ""
            raise UsageError(f"{self._source} did not start: {error}{remedy}") from error
        except TimedOutError as error:
            process.kill()
            raise UsageError(
                f"{self._source} did not start within {START_SECONDS:g} s{self._remedy}"
            ) from error
        except BaseException:
            process.kill()
            raise

    def ask(self, question: Question) -> Answer:
        """The answer to a question, or how the process failed to give one."""
        process = self._ready(question)
        if process is None:
            return Answer("crash", self._broken)
        line = encode(run_message(asked(question, self._base)))
        allowed = self._timeout + self._allowance
        self._allowance = 0.0
        began = time.perf_counter()
        try:
            answer = answered(parse_answer(process.ask(line, allowed), question.case.id), self._base)
        except DiedError as error:
            answer = Answer("crash", str(error))
        except TimedOutError:
            process.kill()
            answer = Answer("timeout", f"no answer within {allowed:g} s")
        except ProtocolError as error:
            process.kill()  # who knows what it answers next
            answer = Answer("wrong", f"invalid reply: {error}{_printed(error)}")
        except Exception as error:  # whatever a program answers, the run goes on
            process.kill()
            answer = Answer("wrong", f"the answer cannot be read: {first_line(error)}")
        return Answer(answer.kind, answer.message, answer.outputs, time.perf_counter() - began)

    def _ready(self, question: Question) -> Process | None:
        """A process that runs and is of the right group; none if it cannot be started."""
        if question.group != self._group:
            self._group = question.group
            self.close()
        if not self._broken and (self._process is None or not self._process.alive):
            again = self._process is not None
            if self._process is not None:
                self._process.kill()
            try:
                self.start()
            except UsageError as error:
                self._broken = f"it could not be started{' again' if again else ''}: {error}"
        return None if self._broken else self._process

    def kill(self) -> None:
        """Ends the process at once, whatever it does; it is not started again."""
        with self._starting:
            self._ended = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> str:
        """Lets the process end, and returns what it said beyond its answers; nothing is the rule."""
        return "" if self._process is None else self._process.stop(encode({"cmd": "stop"}))


def _printed(error: ProtocolError) -> str:
    """What most often makes a line that is invalid."""
    return " (does it print to stdout?)" if str(error).endswith("is not a line of JSON") else ""
