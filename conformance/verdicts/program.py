"""The program that is judged, in its own process: found, made, called, and looked at."""

import gc
import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.running.text_limits import first_line, shorten
from conformance.vectors.case import Array
from conformance.verdicts.hands import hands
from conformance.verdicts.watch import Watch, libraries, profiled

PAUSE = 0.03
"""Seconds after which an answer is looked at again."""
MOST_RESULTS = 8


class UnusableError(Exception):
    """The program cannot be loaded, made or called; the text says why."""


@dataclass
class Question:
    """One call: arrays by place or name, and what is to be done with it beside."""

    arguments: Sequence[tuple[str, Any]]
    state: Mapping[str, Array] = field(default_factory=dict)
    cotangent: Array | None = None  # of the first result: gradients of the first three arguments are asked
    memory: Sequence[str | None] = ()  # how each argument lies
    in_place: bool = False  # the arrays of the call before, with new numbers in them
    poison: Sequence[tuple[int, ...]] = ()  # shapes of results: freed memory of their size holds NaN
    thread: bool = False
    stream: bool = False
    late: bool = False  # the answer is looked at once more after a pause
    profile: bool = False


@dataclass
class Reply:
    """What came of it."""

    results: list[Array] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)  # what is against the rules: check and sentence


class Program:
    """The program, and what was given to it and returned by it last."""

    def __init__(
        self, source: str, call: Mapping[str, Any], device: str | None, ready: Callable[[], None]
    ) -> None:
        """Loads it.

        Args:
            source: path/to/file.py or package.module, with `:attribute` or without.
            call: kind, names, arrays and init of the problem's call.
            device: where its arrays are made.
            ready: called when all is prepared and nothing of the program has run.

        Raises:
            UnusableError: it cannot be loaded or made.
        """
        self._hands = hands(call["arrays"], device)
        self._watch = Watch()
        self._clock, self._sleep, self._thread = time.perf_counter, time.sleep, threading.Thread
        self._collect = gc.collect
        self._one_tuple, self._kind = call["one_tuple"], call["kind"]
        self._given: list[Any] = []
        self._held: list[tuple[Any, Array]] = []  # results of the call before
        ready()
        self._watch.arm()
        try:
            found = _find(source, call["names"])
            self._function = found(*call["init"]) if self._kind == "module" else found
            if device is not None and hasattr(self._function, "to"):
                self._function = self._function.to(device)
        except UnusableError:
            raise
        except (Exception, SystemExit) as error:
            raise UnusableError(f"{Path(source).name} cannot be loaded: {_told(error, source)}") from None
        if not callable(self._function):
            raise UnusableError(f"{type(self._function).__name__} cannot be called")
        self._source = source

    def ask(self, question: Question) -> Reply:
        """Calls it once.

        Raises:
            UnusableError: it raised, or returned what cannot be read.
        """
        reply = Reply()
        given = self._arguments(question)
        before = [None if not _array(x) else self._hands.take(x).tobytes() for x in given]
        if question.state:
            wrong = self._hands.fill(self._function, question.state)
            if wrong:
                raise UnusableError(wrong)
        if question.poison:
            self._held = []
            self._collect()
            self._hands.poison(
                question.poison,
                sorted(
                    {
                        str(x.dtype.name)
                        for _, x in question.arguments
                        if _array(x) and x.dtype.kind not in "biu"
                    }
                ),
            )
        returned = self._called(question, given, reply)
        self._hands.wait()
        gradients: Sequence[Any] = ()
        if question.cotangent is not None:
            returned, gradients = returned[:1], self._gradients(returned, given, question)
        results = gradients if question.cotangent is not None else returned
        reply.results = [self._read(x, n, reply) for n, x in enumerate(results)]
        if question.late:
            self._sleep(PAUSE)
            self._hands.wait()
            for x, held in zip(results, reply.results, strict=True):
                if x is not None and self._hands.take(x).tobytes() != held.tobytes():
                    reply.seen.append(("late", "the answer changes after it was returned: it was not done"))
        self._look(given, before, results, reply)
        self._given = given
        self._held = [(x, held) for x, held in zip(results, reply.results, strict=True) if x is not None]
        reply.seen += [("suite", text) for text in self._watch.told()]
        reply.seen += [("library", text) for text in libraries()]
        return reply

    def _arguments(self, question: Question) -> list[Any]:
        if question.in_place and len(self._given) == len(question.arguments):
            for old, (_, new) in zip(self._given, question.arguments, strict=True):
                if _array(new):
                    self._hands.overwrite(old, new)
            return self._given
        memory = [*question.memory, *[None] * len(question.arguments)]
        return [
            self._hands.give(x, how) if _array(x) else x
            for (_, x), how in zip(question.arguments, memory, strict=False)
        ]

    def _called(self, question: Question, given: list[Any], reply: Reply) -> list[Any]:
        positions = [x for x, (name, _) in zip(given, question.arguments, strict=True) if not name]
        named = {name: x for x, (name, _) in zip(given, question.arguments, strict=True) if name}
        arguments: tuple[Any, ...] = (tuple(positions),) if self._one_tuple else tuple(positions)
        found: list[Any] = []

        def run() -> None:
            try:
                if question.cotangent is not None:
                    for x in given[:3]:
                        self._hands.leaf(x)
                    found.append(self._function(*arguments, **named))
                elif hasattr(self._hands, "torch"):
                    with self._hands.without_gradients():
                        found.append(self._function(*arguments, **named))
                else:
                    found.append(self._function(*arguments, **named))
                self._hands.wait()
            except KeyboardInterrupt as error:
                found.append(UnusableError(f"raises {first_line(error)}"))
            except BaseException as error:
                found.append(UnusableError(f"raises {_told(error, self._source)}"))

        def begin() -> None:
            if question.stream:
                with self._hands.torch.cuda.stream(self._hands.torch.cuda.Stream()):
                    run()
            elif question.profile and hasattr(self._hands, "torch"):
                calls: list[str] = []
                with profiled(self._hands.torch, calls):
                    run()
                reply.seen += [("library", text) for text in calls]
            else:
                run()

        if question.thread:
            thread = self._thread(target=begin, daemon=True)
            thread.start()
            thread.join()
        else:
            begin()
        if isinstance(found[0], UnusableError):
            raise found[0] from None
        return list(found[0]) if isinstance(found[0], tuple | list) else [found[0]]

    def _gradients(self, returned: list[Any], given: list[Any], question: Question) -> Sequence[Any]:
        output = returned[0]
        if not getattr(output, "requires_grad", False):
            raise UnusableError("its output is cut off from its operands: no gradient can be asked of it")
        try:
            found = self._hands.gradients(output, given[:3], self._hands.give(question.cotangent))
        except (Exception, SystemExit) as error:
            raise UnusableError(f"its backward pass raises {_told(error, self._source)}") from None
        for name, gradient in zip(("query", "key", "value"), found, strict=True):
            if gradient is None:
                raise UnusableError(f"its output has no gradient of {name}")
        return found

    def _read(self, thing: Any, number: int, reply: Reply) -> Array:
        if number >= MOST_RESULTS:
            raise UnusableError(f"returned more than {MOST_RESULTS} results")
        if not hasattr(thing, "shape") or not hasattr(thing, "dtype"):
            raise UnusableError(f"returned {shorten(type(thing).__name__, 60)}, wanted an array")
        if strange := self._hands.strange(thing):
            reply.seen.append(("plain", f"result {number} {strange}"))
        try:
            return self._hands.take(thing)
        except Exception as error:
            raise UnusableError(f"result {number} cannot be read: {first_line(error)}") from None

    def _look(
        self, given: list[Any], before: list[bytes | None], results: Sequence[Any], reply: Reply
    ) -> None:
        for number, (x, bytes_) in enumerate(zip(given, before, strict=True)):
            if bytes_ is not None and self._hands.take(x).tobytes() != bytes_:
                reply.seen.append(("inputs", f"argument {number} was written to during the call"))
        regions = []
        for x in results:
            try:
                regions.append(self._hands.region(x))
            except Exception:  # one of another library has none: `plain` says so
                continue
        for number, x in enumerate(given):
            if _array(x) and any(_overlap(region, self._hands.region(x)) for region in regions):
                reply.seen.append(("storage", f"the answer lies in the memory of argument {number}"))
        for old, held in self._held:
            try:
                if self._hands.take(old).tobytes() != held.tobytes():
                    reply.seen.append(
                        ("earlier", "the answer of the call before was overwritten by this call")
                    )
                elif any(_overlap(region, self._hands.region(old)) for region in regions):
                    reply.seen.append(("earlier", "the answer lies in the memory of an earlier answer"))
            except Exception:
                continue


def _array(thing: Any) -> bool:
    return hasattr(thing, "shape") and hasattr(thing, "dtype")


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _find(source: str, names: Sequence[str]) -> Any:
    """The class or function of a program."""
    location, colon, attribute = source.rpartition(":")
    if not colon or source.endswith(".py"):
        location, attribute = source, ""
    module = _file(Path(location)) if location.endswith(".py") else importlib.import_module(location)
    wanted = (attribute,) if attribute else tuple(names)
    for name in wanted:
        if hasattr(module, name):
            return getattr(module, name)
    held = [
        name
        for name, x in vars(module).items()
        if callable(x) and getattr(x, "__module__", "") == module.__name__
    ]
    raise UnusableError(
        f"it has no {' or '.join(wanted)}; it defines {', '.join(held[:8]) or 'nothing that can be called'}"
    )


def _file(path: Path) -> Any:
    name = "program_under_judgement"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnusableError(f"{path} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _told(error: BaseException, source: str) -> str:
    """Type and text of an exception, and the line of the program that it comes from."""
    line, trace = 0, error.__traceback__
    file = Path(source.partition(":")[0]).name
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = 0
    return f"{first_line(error)}{f' (line {line})' if line else ''}"
