"""A program in a process of its own: `python -m conformance.verdicts.worker`.

Reads one line of JSON after another: `prepare`, `load`, then `ask` as often as it is asked. No expected value ever
comes here; what the program does to this process cannot make a wrong answer right.
"""

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from conformance.running.parent_watch import end_with_parent
from conformance.running.protocol import decode_array, encode, encode_array, loads
from conformance.running.text_limits import first_line, shorten
from conformance.verdicts.hands import hands
from conformance.verdicts.program import Program, Question, UnusableError

Message = dict[str, Any]


def main() -> int:
    """Serves until its input ends."""
    end_with_parent()
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    lines, answers = _streams()
    with answers:
        return serve(lines, answers)


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """The channel, on private copies; what the program prints goes to stderr."""
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return lines, answers


def serve(lines: BinaryIO, answers: BinaryIO) -> int:
    """Answers one line after another.

    Its functions are taken before a program is loaded, which may put others in their place.
    """
    tell, read, decode, code, short = encode, loads, decode_array, encode_array, shorten
    program: Program | None = None
    write, flush = answers.write, answers.flush

    def send(message: Message) -> None:
        write(tell(message))
        flush()

    for line in lines:
        message = read(line)
        reply: Message
        try:
            if message["cmd"] == "prepare":  # what takes long, before it is known which program comes
                hands(message["arrays"], None)
                reply = {"ready": True}
            elif message["cmd"] == "load":
                if message.get("folder"):
                    sys.path.append(message["folder"])
                program = Program(message["source"], message["call"], message["device"], lambda: None)
                reply = {"loaded": True}
            elif message["cmd"] == "ask" and program is not None:
                reply = _asked(program, message, decode, code)
            else:
                break
        except UnusableError as error:
            reply = {"error": short(str(error), 600)}
        except MemoryError:
            reply = {"error": "there is not enough memory for it"}
        except Exception as error:  # of the library, on what the program returned
            reply = {"error": short(f"what it returned cannot be read: {first_line(error)}", 600)}
        send({"id": message.get("id", 0), **reply})
    return 0


def _asked(
    program: Program,
    message: Mapping[str, Any],
    decode: Callable[[str, Mapping[str, Any]], Any],
    code: Callable[[Any], Message],
) -> Message:
    def value(entry: Mapping[str, Any]) -> Any:
        return decode("argument", entry["array"]) if "array" in entry else entry["value"]

    cotangent = message.get("cotangent")
    reply = program.ask(
        Question(
            arguments=[(entry["name"], value(entry)) for entry in message["arguments"]],
            state={name: decode(name, x) for name, x in message.get("state", {}).items()},
            cotangent=None if cotangent is None else decode("cotangent", cotangent),
            memory=message.get("memory", ()),
            poison=[tuple(shape) for shape in message.get("poison", ())],
            **{
                name: True
                for name in ("in_place", "thread", "stream", "late", "profile")
                if message.get(name)
            },
        )
    )
    return {"results": [code(x) for x in reply.results], "seen": reply.seen}


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry != str(Path.cwd())]
    sys.exit(main())
