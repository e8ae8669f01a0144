"""The process of a program, as the judge speaks to it."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.problems.problem import Problem
from conformance.running.locating import installed
from conformance.running.process import DiedError, Process, TimedOutError
from conformance.running.protocol import ProtocolError, decode_array, encode, encode_array, loads
from conformance.running.text_limits import shorten
from conformance.vectors.case import Array
from conformance.verdicts.forms import Given

START_SECONDS = 120.0
LOAD_SECONDS = 120.0
"""How long a program may take to load: it may compile there."""
FIRST_SECONDS = 20.0
"""What its first call may take beyond its timeout."""
TIMEOUT = 20.0
MOST_DEATHS = 2
"""How often a process may die; what is left is then not asked, nor after a call without an answer in time."""


@dataclass(frozen=True)
class Answer:
    """What came of one call: results, or why there are none."""

    results: Sequence[Array] = ()
    seen: Sequence[tuple[str, str]] = field(default_factory=tuple)
    error: str = ""


class Asker:
    """One program, in a process that is started anew where it dies.

    Raises:
        UsageError: the problem gives tensors of torch, and torch is not installed.
    """

    def __init__(
        self,
        problem: Problem,
        device: str | None = None,
        timeout: float = TIMEOUT,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        if problem.call.arrays == "torch" and not installed("torch"):
            raise UsageError(
                f"problem {problem.name} gives torch tensors, and torch is not installed: install it, "
                "or take a problem of NumPy arrays such as plain-numpy"
            )
        self.problem, self._device, self._timeout, self._echo = problem, device, timeout, echo
        self._source = ""
        self._process: Process | None = None
        self._numbers = itertools.count(1)
        self._deaths = 0
        self._allowance = 0.0
        self.broken = ""  # why nothing can be asked

    def prepare(self) -> None:
        """Starts a process, which loads the array library; it does not wait for that."""
        command = [sys.executable, "-P", "-m", "conformance.verdicts.worker"]
        self._process = Process(command, self._echo)

    def warm(self) -> None:
        """Waits until the array library is loaded."""
        assert self._process is not None
        with suppress(DiedError, TimedOutError, ProtocolError):
            self._process.ask(encode({"cmd": "prepare", "arrays": self.problem.call.arrays}), START_SECONDS)

    def load(self, source: str) -> str:
        """Loads a program; why it cannot be, if so."""
        self._source = source
        if self._process is None:
            self.prepare()
        call = self.problem.call
        self._allowance = FIRST_SECONDS
        reply = self._asked(
            {
                "cmd": "load",
                "source": source,
                "folder": os.fspath(Path.cwd()),
                "device": self._device,
                "call": {
                    "kind": call.kind,
                    "names": list(call.names),
                    "arrays": call.arrays,
                    "init": list(call.init),
                    "one_tuple": call.one_tuple,
                },
            },
            LOAD_SECONDS,
        )
        self.broken = str(reply.get("error", ""))
        return self.broken

    def ask(self, given: Given, **beside: Any) -> Answer:
        """Calls the program; `beside` says what is done with the call (`conformance.verdicts.program.Question`)."""
        if self.broken:
            return Answer(error=self.broken)
        if self._process is None or not self._process.alive:
            self.close()
            self.prepare()
            if self.load(self._source):
                return Answer(error=self.broken)
        message: dict[str, Any] = {
            "cmd": "ask",
            "arguments": [
                {"name": name, **({"array": encode_array(x)} if isinstance(x, np.ndarray) else {"value": x})}
                for name, x in given.arguments
            ],
            **{name: encode_array(x) if isinstance(x, np.ndarray) else x for name, x in beside.items()},
        }
        if given.state:
            message["state"] = {name: encode_array(x) for name, x in given.state.items()}
        timeout, self._allowance = self._timeout + self._allowance, 0.0
        reply = self._asked(message, timeout)
        if "error" in reply:
            return Answer(error=str(reply["error"]))
        try:
            seen = tuple((str(check), shorten(str(text))) for check, text in reply.get("seen", ()))
            return Answer([decode_array("result", x) for x in reply["results"]], seen)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            return Answer(error=f"what it returned cannot be read: {shorten(str(error))}")

    def _asked(self, message: dict[str, Any], timeout: float) -> Mapping[str, Any]:
        process = self._process
        assert process is not None
        number = next(self._numbers)
        began = time.monotonic()
        try:
            reply = loads(process.ask(encode({**message, "id": number}), timeout))
            if not isinstance(reply, dict) or reply.get("id") != number:
                raise ProtocolError("it wrote to the channel of its answers")
            return reply
        except DiedError as error:
            why = f"its process dies: {error}"
        except TimedOutError:
            why = f"it does not answer within {time.monotonic() - began:.0f} s"
            self._deaths = MOST_DEATHS
        except ProtocolError as error:
            why = f"what comes from its process is no answer: {error}"
        process.kill()
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self.broken = why
        return {"error": why}

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process = None
