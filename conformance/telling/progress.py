"""A run as it goes: a live bar on a terminal, plain lines elsewhere, nothing when it shall be quiet."""

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from conformance.diagnosis.saying import kind
from conformance.judging.verdict import Row
from conformance.running.events import Event, GaveUp, Noticed, Started
from conformance.running.messages import Hello, Question
from conformance.running.subprocess_target import START_SECONDS
from conformance.telling.requirements import named
from conformance.telling.summary import by_default
from conformance.telling.terminal import MESSAGE, STYLES, counted, plain, safe, shorten

SLOW_START = 8.0
"""Seconds after which a target that has not started is said to be waited for."""
SLOW_TEST = 10.0
"""Seconds after which a test that has no answer yet is named, where no other has ended meanwhile."""
FAILURES_SHOWN = 8
"""Failing rows that are told one by one, unless every row is."""
SAME_SHOWN = 2
"""Rows of one dtype that raise the same which are shown."""
COVERS_SHOWN = 4


class RunProgress:
    """Shows events on a console: the first failures always, every row when verbose, a bar on a terminal."""

    def __init__(
        self, console: Console, quiet: bool = False, verbose: bool = False, report: bool = True
    ) -> None:
        self._kept = ", --report keeps them" if report else ""  # `diagnose` has no --report
        self._console, self._quiet, self._verbose = console, quiet, verbose
        self._failed = self._shown = 0
        self._raised: Counter[tuple[str, str]] = Counter()
        self._waiting = threading.Timer(SLOW_START, self._wait)
        self._waiting.daemon = True
        self._asked: dict[
            tuple[str, str], float
        ] = {}  # (case ID, dtype) -> when, of those without an answer yet
        self._last = time.time()  # when a test began or ended
        self._over = threading.Event()
        self._hello: Hello | None = None  # until what it claims by default is said
        self._bar: Progress | None = None
        if console.is_terminal and not quiet and not verbose:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[failed]}", style="red"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if not self._quiet:
            self._waiting.start()
            threading.Thread(target=self._watch, daemon=True).start()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.cancel()
        self._over.set()
        if self._bar is not None:
            self._bar.stop()
        more = self._failed - self._shown
        if more > 0 and not self._quiet and not self._verbose:
            self._console.print(f"... and {more} more; -v shows them all{self._kept}")

    def show(self, event: Event) -> None:
        """Shows one event."""
        if isinstance(event, Started):
            self._waiting.cancel()
            self._begin(event)
            return
        if isinstance(event, GaveUp):  # which the report tells
            return
        if isinstance(event, Noticed):
            if not self._quiet:
                self._console.print(plain(f"by experiment {event.what}", "bold"), soft_wrap=True)
            return
        self._asked.pop((event.case, event.dtype), None)
        self._last = time.time()
        self._failed += event.unexpected
        told = event.unexpected and self._shown < FAILURES_SHOWN and not self._known(event)
        self._shown += told
        if not self._quiet and (told or self._verbose):
            self._console.print(row_text(event, self._verbose), soft_wrap=True)
            self._say_assumed(event)
        if self._bar is not None:
            failed = f"{self._failed} failed" if self._failed else ""
            self._bar.update(self._bar.task_ids[0], advance=1, failed=failed)

    def _say_assumed(self, row: Row) -> None:
        """Says once, of the first failure of it, that a feature was tested of which nothing was said."""
        hello = self._hello
        names = [name for name in row.features if hello is not None and name in hello.assumed]
        if hello is not None and names and row.unexpected:
            said = f"        it needs {' and '.join(names)}, {by_default(names, hello)}"
            self._console.print(plain(said, "yellow"), soft_wrap=True)
            self._hello = None

    def _known(self, row: Row) -> bool:
        """Whether what a call raised has been shown for its dtype often enough."""
        if row.verdict != "error":
            return False
        self._raised[row.dtype, kind(row.message)] += 1
        return self._raised[row.dtype, kind(row.message)] > SAME_SHOWN

    def asking(self, question: Question) -> None:
        """Takes in what is asked now."""
        self._asked[question.case.id, question.dtype] = self._last = time.time()

    def _watch(self) -> None:
        """Names the test that takes longest, once no test has begun or ended for a while."""
        named: set[tuple[str, str]] = set()
        while not self._over.wait(SLOW_TEST / 10):
            asked = sorted(self._asked.copy().items(), key=lambda item: item[1])
            if not asked or time.time() - self._last < SLOW_TEST or asked[0][0] in named:
                continue
            (case, dtype), since = asked[0]
            named.add((case, dtype))
            clock = time.strftime("%H:%M:%S", time.localtime(since))
            said = f"{case} {dtype} has been running since {clock}; --timeout limits it"
            self._console.print(plain(said, "dim"), soft_wrap=True)

    def _wait(self) -> None:
        limit = f"the target to start and say what it is: it may take {START_SECONDS:g} s"
        self._console.print(plain(f"waiting for {limit}", "dim"), soft_wrap=True)

    def _begin(self, event: Started) -> None:
        hello = self._hello = event.hello
        for note in () if self._quiet else hello.notes:
            self._console.print(plain(f"note: {note}", "yellow"), soft_wrap=True)
        if self._bar is not None:
            self._bar.add_task(safe(shorten(hello.name)), total=event.total, completed=event.done, failed="")
        elif not self._quiet:
            name = " ".join(shorten(part) for part in (hello.name, hello.version) if part)
            tests = counted(event.total, "test")
            done = f", {event.done} of them done before" if event.done else ""
            self._console.print(
                plain(f"{name}: {tests}{done}, tolerance policy {event.accuracy}"),
                soft_wrap=True,
            )

    def echo(self, text: str) -> None:
        """Shows what a target's process writes to stderr."""
        for line in text.splitlines():
            self._console.print(plain(f"  | {line}", "dim"), soft_wrap=True)


def row_text(row: Row, verbose: bool = False) -> Text:
    """A row: verdict, case, dtype, requirements; what is wrong stands on a line of its own."""
    name = f" {row.case} {row.dtype}"
    said = shorten(row.message, MESSAGE)
    if row.known and row.failed:
        return Text.assemble(
            verdict(row, verbose), plain(f"{name} ({row.judged}): {row.known.reason or 'no reason given'}")
        )
    if not row.unexpected:
        message = f": {said}" if said else ""
        return Text.assemble(verdict(row, verbose), plain(f"{name} ({row.seconds:.2f} s){message}"))
    covers = [*map(named, row.covers[:COVERS_SHOWN]), *["..."] * (len(row.covers) > COVERS_SHOWN)]
    return Text.assemble(
        verdict(row, verbose), plain(f"{name} ({', '.join(covers)})"), "\n", plain(f"        {said}")
    )


def verdict(row: Row, verbose: bool) -> Text:
    """The verdict in a column as wide as those that are shown need."""
    return Text(f"{row.verdict:<{11 if verbose else 7}}", STYLES[row.verdict])
