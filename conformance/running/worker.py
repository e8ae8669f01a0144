"""A Python target in a process of its own: `python -m conformance.running.worker TARGET`.

Speaks the line protocol on a private copy of stdout; what the target prints goes to stderr.
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from conformance.errors import UsageError
from conformance.running.aliasing import Previous
from conformance.running.closed import Closed, open_to
from conformance.running.compiled import Compiled
from conformance.running.invoke import call
from conformance.running.locating import implementations, reachable
from conformance.running.messages import Answer, Hello
from conformance.running.parent_watch import end_with_parent
from conformance.running.protocol import (
    VERSION,
    Message,
    ProtocolError,
    answer_message,
    check,
    decode_array,
    encode,
    hello_message,
    loads,
)
from conformance.running.target import Target, load
from conformance.running.text_limits import first_line

Other = Callable[[Target, Message], Message]
"""Answers a message of another kind, which this protocol does not know."""


def main(arguments: Sequence[str] | None = None, others: Mapping[str, Other] | None = None) -> int:
    """Serves one target until it is told to stop or nobody listens any more."""
    parser = argparse.ArgumentParser(prog="python -m conformance.running.worker", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--op", help="the operation that a function with another name is")
    parser.add_argument("--device", help="where the array library makes the target's arrays")
    parser.add_argument("--path", action="append", default=[], help="a folder that it may import from")
    asked = parser.parse_args(arguments)
    for folder in asked.path:
        reachable(Path(folder))
    end_with_parent()
    lines, answers = _take_over_streams()
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    with answers:
        return serve(lines, answers, asked.target, asked.op, asked.device, others)


def _take_over_streams() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's streams; afterwards nothing that is printed or read reaches them."""
    sys.stdout.flush()
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return lines, answers


def serve(
    lines: BinaryIO,
    answers: BinaryIO,
    source: str,
    operation: str | None,
    device: str | None,
    others: Mapping[str, Other] | None = None,
) -> int:
    """Answers one message after another; 0 at the end, 2 if the target cannot be started."""
    target: Target | None = None
    closed = Closed()
    previous = Previous()
    compiled = Compiled()
    for line in lines:
        try:
            message = loads(line)
            command = message.get("cmd") if isinstance(message, dict) else None
            if command == "stop":
                break
            if command == "start":
                target = _start(check(message, "start"), source, operation, device)
                reply = hello_message(_watched(target, source, closed))
            elif command == "run" and target is not None:
                reply = answer_message(
                    str(message.get("id", "")), _run(target, check(message, "run"), previous, closed)
                )
            elif others and target is not None and isinstance(command, str) and command in others:
                reply = others[command](target, message)
            else:
                raise ProtocolError(
                    f"cmd: wanted {'start' if target is None else 'run or stop'}, got {command!r}"
                )
        except UsageError as error:
            answers.write(encode({"error": str(error)}))
            return 2
        except ProtocolError as error:
            reply = {"id": "", "error": f"message refused: {error}", "raised": False}
        with suppress(Exception):  # a target may have put something else there
            sys.stdout.flush()  # what it printed is told before the answer, so that it stands with its case
        answers.write(encode(reply))
        answers.flush()
        with suppress(Exception):  # it is the target's library
            compiled.drop()
    return 0


def _start(message: Message, source: str, operation: str | None, device: str | None) -> Target:
    if message["protocol"] != VERSION:
        raise UsageError(f"protocol {message['protocol']} is unknown: this worker speaks {VERSION}")
    return load(source, operation, device)


def _watched(target: Target, source: str, closed: Closed) -> Hello:
    """What the target says of itself, and whether it read the stored answers while it was loaded."""
    read = closed.noted()
    closed.close(open_to(implementations().get(source, source), target.based_on))
    note = f"{source} {read.partition(':')[0]} while it was loaded: what it remembers of them, variants show"
    return replace(target.hello, notes=(*target.hello.notes, note)) if read else target.hello


def _run(target: Target, message: Message, previous: Previous, closed: Closed) -> Answer:
    inputs = {name: decode_array(name, entry) for name, entry in message["inputs"].items()}
    try:
        answer = call(
            target,
            message["operation"],
            inputs,
            message["options"],
            message.get("memory", {}),
            message.get("repeat", 1),
            raised=traceback.print_exception,
            previous=previous,
        )
    except KeyboardInterrupt as error:  # raised by the target: no user reaches this process
        answer = Answer("error", first_line(error))
    noted = closed.noted()
    return Answer("wrong", noted) if noted else answer


if __name__ == "__main__":
    sys.exit(main())
