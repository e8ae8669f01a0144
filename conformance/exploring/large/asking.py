"""Who asks calls of production size: a process that makes them itself, this process, or a program by the protocol."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from conformance.dtypes import NUMPY_DTYPES
from conformance.errors import UsageError
from conformance.exploring.large import layer
from conformance.exploring.large.call import Large, token
from conformance.exploring.large.contents import operands
from conformance.exploring.large.judged import judged
from conformance.exploring.large.making import host
from conformance.exploring.large.seen import options
from conformance.exploring.large.told import Told
from conformance.exploring.large.where import ask, parted
from conformance.exploring.large.worker import ASK, MODULE, ROOM, room
from conformance.running.arrays import MOST_BYTES
from conformance.running.memory_limit import free
from conformance.running.messages import Hello, Question
from conformance.running.process import DiedError, Process, TimedOutError, worker_command
from conformance.running.protocol import ProtocolError, encode, loads, parse_hello, start_message
from conformance.running.request import Request
from conformance.running.subprocess_target import FIRST_CASE_SECONDS, START_SECONDS, Isolated
from conformance.running.target import adopt, load
from conformance.vectors.case import Array, Case

SHARE = 0.25
"""Which part of what is free a call takes, unless another is asked for."""
GIB = 2.0**30


class Asker(Protocol):
    """Whatever asks calls of production size."""

    hello: Hello

    def room(self) -> float:
        """Bytes that are free where the arrays are made."""

    def ask(self, call: Large, policy: str) -> Told:
        """What became of a call."""

    def close(self) -> None:
        """Ends it."""

    def kill(self) -> None:
        """Ends it at once."""


def start(request: Request, echo: Callable[[str], None] | None) -> Asker:
    """Makes ready whatever the request wants asked.

    Raises:
        UsageError: it does not start.
    """
    if request.command:
        return ByProtocol(request, echo)
    if request.in_process or not isinstance(request.target, str):
        return Here(request)
    return Apart(request, echo)


class Here:
    """Asks in this process: no timeout, and a crash takes everything with it."""

    def __init__(self, request: Request) -> None:
        operation = request.selection.operation
        if isinstance(request.target, str):
            self._target = load(request.target, operation, request.device)
        else:
            self._target = adopt(request.target, request.source, operation, request.device)
        self.hello = self._target.hello

    def room(self) -> float:
        """Bytes that are free where the arrays are made."""
        return room(self._target)

    def ask(self, call: Large, policy: str) -> Told:
        """What became of a call."""
        return ask(self._target, call, policy)

    def close(self) -> None:
        """Nothing is left to end."""

    kill = close


class Apart:
    """Asks a worker, which makes the arrays itself; one that dies is started again."""

    def __init__(self, request: Request, echo: Callable[[str], None] | None) -> None:
        self._source, self._timeout, self._echo = request.source, request.timeout, echo
        self._command = worker_command(
            request.target, request.selection.operation, request.device, request.path, MODULE
        )
        self._process: Process | None = None
        self._alone = ""  # the dtype that has the process for itself
        self._late = 0.0
        self.hello = self._started()

    def _started(self) -> Hello:
        self._process = Process(self._command, self._echo)
        self._late = FIRST_CASE_SECONDS
        try:
            return parse_hello(self._process.ask(encode(start_message()), START_SECONDS), self._source)
        except (ProtocolError, DiedError, TimedOutError) as error:
            self._process.kill()
            raise UsageError(f"{self._source} did not start: {error or 'no answer in time'}") from error
        except BaseException:
            self._process.kill()
            raise

    def room(self) -> float:
        """Bytes that are free where the arrays are made."""
        told = self._sent({"cmd": ROOM}, START_SECONDS)
        return float(told["bytes"]) if isinstance(told, dict) and told.get("bytes") else free()

    def ask(self, call: Large, policy: str) -> Told:
        """What became of a call."""
        alone = call.dtype if call.dtype in self.hello.isolate else ""
        if alone != self._alone:
            self.close()
            self._alone = alone
        began, late, self._late = time.perf_counter(), self._late, 0.0
        allowed = self._timeout + late
        told = self._sent({"cmd": ASK, "token": token(call), "policy": policy}, allowed)
        if isinstance(told, dict):
            return Told(**told)
        return told.after(time.perf_counter() - began)

    def _sent(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any] | Told:
        try:
            if self._process is None or not self._process.alive:
                self.close()
                self._started()
            assert self._process is not None
            answer: dict[str, Any] = loads(self._process.ask(encode(message), timeout))
        except UsageError as error:
            return Told("crash", f"it could not be started again: {error}")
        except DiedError as error:
            self.close()
            return Told("memory" if " GiB of memory" in str(error) else "crash", str(error))
        except TimedOutError:
            self.kill()
            return Told("timeout", f"no answer within {timeout:g} s")
        except ProtocolError as error:
            self.kill()
            return Told("wrong", f"the answer is not of the protocol: {error}")
        return answer if "error" not in answer else Told("wrong", str(answer["error"]))

    def close(self) -> None:
        """Ends the process; the next call starts another one."""
        if self._process is not None:
            self._process.stop(encode({"cmd": "stop"}))
        self._process = None

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
        self._process = None


class ByProtocol:
    """Asks a program by the line protocol: what is too large for a line is left out."""

    def __init__(self, request: Request, echo: Callable[[str], None] | None) -> None:
        self._asker = Isolated(request.command, request.source, request.timeout, echo)
        self.hello = self._asker.start()

    def room(self) -> float:
        """Bytes that are free."""
        return free()

    def ask(self, call: Large, policy: str) -> Told:
        """What became of a call."""
        size = NUMPY_DTYPES[call.dtype].itemsize
        numbers = [*call.elements.values(), *(n for _, n in call.projections.values())]
        if max(numbers) * size > MOST_BYTES:
            return Told("memory", f"an array is larger than the {MOST_BYTES >> 20} MiB that a line holds")
        arrays, others = options(call)
        make = host(call.dtype)
        inputs = (
            {**layer.operands(call, make), **layer.weights(call, make)}
            if call.layer
            else {
                part: _headed(call, name, array)[:, :, keys]
                for name, array in operands(call, make).items()
                for part, keys in parted(call, name).items()
            }
        )
        case = Case(
            id="explore/large", note="", operation=call.operation, covers=(), features=(), dtypes=(call.dtype,),
            excluded={}, options={name: list(x) if isinstance(x, tuple) else x for name, x in others.items()},
            inputs={**inputs, **arrays}, expected={},
        )  # fmt: skip
        answer = self._asker.ask(Question(case, call.dtype))
        if answer.kind != "outputs":
            return Told(answer.kind, answer.message, seconds=answer.seconds)
        return judged(call, policy, Whole(answer.outputs)).after(answer.seconds)

    def close(self) -> None:
        """Ends the process."""
        self._asker.close()

    def kill(self) -> None:
        """Ends the process at once."""
        self._asker.kill()


def _headed(call: Large, name: str, array: Array) -> Array:
    """[rows, width] as heads."""
    heads, length = (call.groups, call.kv_len) if name in ("key", "value") else (call.heads, call.q_len)
    return array.reshape(call.batch, heads, length, array.shape[-1])


class Whole:
    """Results that are there as NumPy arrays."""

    def __init__(self, outputs: Mapping[str, Array]) -> None:
        self._outputs = outputs

    @property
    def names(self) -> tuple[str, ...]:
        """Which results there are."""
        return tuple(self._outputs)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a result."""
        return self._outputs[name].shape

    def piece(self, name: str, index: tuple[slice, ...]) -> Array:
        """A part of a result."""
        return np.asarray(self._outputs[name][index])
