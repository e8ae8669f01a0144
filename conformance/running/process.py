"""A process that is spoken to line by line: no pipe ever blocks the suite, no child outlives it."""

import math
import os
import queue
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from conformance.errors import UsageError
from conformance.resources import current_folder
from conformance.running.memory_limit import allowance, resident
from conformance.running.parent_watch import MARK, end, launched, processes
from conformance.running.protocol import ProtocolError
from conformance.running.text_limits import shorten

TAIL_BYTES = 8192
"""How much of a process's stderr is kept for the message when it dies."""
TAIL_LINES = 5
"""How many lines of it are told of a process that dies before it has said anything."""
ANSWER_BYTES = 2**26
"""How long a line may be: what arrays.MOST_BYTES takes as base64, and more than enough around it."""
NAMED_ERROR = re.compile(r"\b\w*(Error|Exception|panicked)\b", re.IGNORECASE)
"""What a line says that tells more than those of the stack below it, as Node and Rust print one."""
UNREAD_LINES = 8
"""How many lines are kept that nobody has asked for yet; the first of them is a fault, the others are dropped."""
LOOK_SECONDS = 0.2
"""How often a process that is silent is looked at."""
HEARD_SECONDS = 0.2
"""How long what it has written to stderr before an answer is waited for; one that never stops is not."""
DEAD_SECONDS = 1.0
"""How long the last answer of a dead process is waited for, when a child of its own keeps the pipe open."""
POLLED = hasattr(select, "poll")
"""Whether this system can say that a pipe has something to read."""

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class DiedError(Exception):
    """The process ended; the text says how, and its last words; `silent` where it left none."""

    def __init__(self, text: str, silent: bool = False) -> None:
        super().__init__(text)
        self.silent = silent


class TimedOutError(Exception):
    """The process did not answer in time."""


def _readable(stream: IO[bytes], milliseconds: int | None = None) -> bool:
    """Whether a pipe has something to read, or its end; waits for that, without end or for so long."""
    waiting = select.poll()
    waiting.register(stream.fileno(), select.POLLIN)
    return bool(waiting.poll(milliseconds))


class Process:
    """A child process with its pipes; `echo` gets what it writes to stderr."""

    def __init__(self, command: Sequence[str], echo: Callable[[str], None] | None = None) -> None:
        current_folder()
        if shutil.which(command[0]) is None:
            raise UsageError(f"cannot start {command[0]!r}: No such file, or none that may be run")
        self._mark = secrets.token_hex(16)
        try:
            self._child = subprocess.Popen(
                launched(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment(os.environ), MARK: self._mark},
                start_new_session=True,  # Ctrl-C is ours to handle; its own children die with it
            )
        except OSError as error:
            raise UsageError(f"cannot start {command[0]!r}: {error.strerror or error}") from error
        self._echo = echo
        self._most = allowance()  # bytes of memory
        self._tail = bytearray()
        self._listening = threading.Lock()
        self._to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._received: queue.SimpleQueue[bytes | ProtocolError | None] = (
            queue.SimpleQueue()
        )  # None = the end
        self._answers = 0  # that it has given
        self._threads = [
            threading.Thread(target=work, args=(stream,), daemon=True)
            for work, stream in (
                (self._write, self._child.stdin),
                (self._read, self._child.stdout),
                (self._listen, self._child.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._child.poll() is None

    def ask(self, line: bytes, timeout: float) -> bytes:
        """Sends a line and waits for one.

        Raises:
            DiedError: the process ended before it answered.
            TimedOutError: it did not answer within the timeout, in seconds.
            ProtocolError: it said something before it was asked, or something endless.
        """
        if self._answers:
            self._check_silence("the question before this one")
        self._to_send.put(line)
        answer = self._wait(timeout)
        if isinstance(answer, ProtocolError):
            raise answer
        if answer is None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(DEAD_SECONDS)  # its pipe is closed: it shall say itself what it died of
            alive = self.alive
            self.kill()
            raise DiedError(self._last_words(alive), silent=not self._tail.strip())
        self._answers += 1
        self._hear()
        return answer

    def _hear(self) -> None:
        """Waits until what was written to stderr before an answer has been told, so that it stands with its case."""
        if not POLLED or self._child.stderr is None:
            return
        late = time.monotonic() + HEARD_SECONDS
        with suppress(OSError, ValueError):  # it has been closed
            while _readable(self._child.stderr, 0) and time.monotonic() < late:
                time.sleep(0.0005)
        with self._listening:
            pass

    def _check_silence(self, question: str) -> None:
        try:
            early = self._received.get_nowait()
        except queue.Empty:
            return
        if early is None:
            self._received.put(None)  # it has died since, as the next answer tells
            return
        if isinstance(early, ProtocolError):
            raise early
        told = shorten(early[:4096].decode("utf-8", "replace"))
        raise ProtocolError(f"the program said more than one line to {question} (PROTO-1): {told!r}")

    def _wait(self, timeout: float) -> bytes | ProtocolError | None:
        """The next answer; None if the process has died, even if somebody else still holds its pipe."""
        now = time.monotonic()
        late, dead = now + timeout, math.inf
        while True:
            try:
                return self._received.get(timeout=max(0.0, min(LOOK_SECONDS, late - now)))
            except queue.Empty:
                now = time.monotonic()
            if max(map(resident, processes(self._child)), default=0) > self._most:
                self.kill()
                raise DiedError(
                    f"the process took more than {self._most / 2**30:.1f} GiB of memory, and was ended"
                )
            if dead == math.inf and not self.alive:
                dead = now + DEAD_SECONDS
            if now >= dead:
                return None
            if now >= late and dead == math.inf:
                raise TimedOutError

    def stop(self, line: bytes, patience: float = 2.0) -> str:
        """Lets the process end by itself, ends it if it does not, and returns what it said beyond its answers."""
        self._to_send.put(line)
        self._to_send.put(None)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(patience)
        self.kill()
        try:
            self._check_silence("its last question, or a line to stop")
        except ProtocolError as error:
            return str(error)
        return ""

    def kill(self) -> None:
        """Ends the process and whatever it has started."""
        end(self._child, self._mark)
        self._to_send.put(None)
        late = time.monotonic() + DEAD_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, late - time.monotonic()))

    def _write(self, stream: IO[bytes]) -> None:
        while (line := self._to_send.get()) is not None:
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError):  # nobody reads any more; the reader will say so
                break
        with suppress(OSError):
            stream.close()

    def _read(self, stream: IO[bytes]) -> None:
        try:
            with stream:
                while line := stream.readline(ANSWER_BYTES):
                    if len(line) == ANSWER_BYTES and not line.endswith(b"\n"):
                        raise ProtocolError(f"an answer of more than {ANSWER_BYTES // 2**20} MiB is too long")
                    if self._received.qsize() < UNREAD_LINES:  # more is read as well, so that the end is seen
                        self._received.put(line)
        except ProtocolError as error:
            self._received.put(error)
        except MemoryError:
            self._received.put(ProtocolError("an answer does not fit into memory"))
        except (OSError, ValueError):  # the pipe is gone
            pass
        finally:
            self._received.put(None)

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            while self._heard(stream):
                pass

    def _heard(self, stream: IO[bytes]) -> bool:
        """Takes in what the process writes next; whether there was any."""
        if POLLED:
            _readable(stream)  # without the lock, which is held from the reading to the end of the telling
        with self._listening:
            chunk = os.read(stream.fileno(), TAIL_BYTES)
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if chunk and self._echo:
                with suppress(Exception):  # nobody to tell it to: the process must not block for that
                    self._echo(chunk.decode("utf-8", "replace"))
        return bool(chunk)

    def _last_words(self, alive: bool) -> str:
        """How it ended, and what it said; `alive` says that it had to be ended."""
        code = self._child.returncode
        if alive:
            how = "closed its output, and was ended"
        elif code < 0:
            try:
                how = f"died of signal {signal.Signals(-code).name}"
            except ValueError:
                how = f"died of signal {-code}"
        else:
            how = f"exited with status {code}"
        lines = [line.strip() for line in self._tail.decode("utf-8", "replace").strip().splitlines()]
        if not lines:
            return f"the process {how}"
        if self._answers or len(lines) == 1:
            return f"the process {how}; its last line was: {shorten(lines[-1])}"
        telling = [line for line in lines[:-TAIL_LINES] if NAMED_ERROR.search(line)]
        last = " / ".join(shorten(line, 100) for line in (*telling[-1:], *lines[-TAIL_LINES:]))
        return f"the process {how}; its last lines were: {last}"


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """A child's environment: one thread unless the user says otherwise, and this package importable."""
    root = Path(__file__).resolve().parents[2]
    path = [entry for entry in inherited.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if root.name not in ("site-packages", "dist-packages") and str(root) not in path:
        path.append(str(root))
    return {
        **dict.fromkeys(THREADS, "1"),
        **inherited,
        **({"PYTHONPATH": os.pathsep.join(path)} if path else {}),
    }


def worker_command(
    source: str,
    operation: str | None,
    device: str | None,
    path: Iterable[str] = (),
    module: str = "conformance.running.worker",
) -> list[str]:
    """What starts a worker for a Python target; `module` is one that knows more messages."""
    command = [sys.executable, "-P", "-m", module]
    if operation:
        command += ["--op", operation]
    if device:
        command += ["--device", device]
    for folder in path:
        command += ["--path", folder]
    return [*command, "--", source]


def split_command(command: str | Iterable[str] | None) -> tuple[str, ...]:
    """The words of a command line, quoted as in a shell.

    Raises:
        UsageError: there is none, or a quote is open.
    """
    if not isinstance(command, str):
        return tuple(command or ())
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--command {command!r} cannot be read: {error}") from error
    if not words:
        raise UsageError("--command is empty; give a program, as in --command 'node impl.js'")
    return words
