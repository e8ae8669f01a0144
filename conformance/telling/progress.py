"""A run as it goes: a live bar on a terminal, plain lines elsewhere, nothing when it shall be quiet."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from conformance.judging.verdict import Row
from conformance.running.runner import Event, Started
from conformance.telling.text import STYLES, plain, safe


class RunProgress:
    """Shows events on a console: failures always, every row when verbose, a bar on a terminal."""

    def __init__(self, console: Console, quiet: bool = False, verbose: bool = False) -> None:
        self._console, self._quiet, self._verbose = console, quiet, verbose
        self._failed = 0
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
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, event: Event) -> None:
        """Shows one event."""
        if isinstance(event, Started):
            self._begin(event)
            return
        self._failed += event.failed
        if not self._quiet and (event.failed or self._verbose):
            self._console.print(row_line(event, seconds=self._verbose), soft_wrap=True)
        if self._bar is not None:
            failed = f"{self._failed} failed" if self._failed else ""
            self._bar.update(self._bar.task_ids[0], advance=1, failed=failed)

    def _begin(self, event: Started) -> None:
        hello = event.hello
        if self._bar is not None:
            self._bar.add_task(safe(hello.name), total=event.total, failed="")
        elif not self._quiet:
            version = f" {hello.version}" if hello.version else ""
            self._console.print(
                plain(f"{hello.name}{version}: {event.total} cases by dtype, judged as {event.accuracy}"),
                soft_wrap=True,
            )

    def echo(self, text: str) -> None:
        """Shows what a target's process writes to stderr."""
        for line in text.splitlines():
            self._console.print(plain(f"  | {line}", "dim"), soft_wrap=True)


def row_line(row: Row, seconds: bool = False) -> Text:
    """A row as one line: verdict, case, dtype, message."""
    time = f" ({row.seconds:.2f} s)" if seconds else ""
    message = f": {row.message}" if row.message else ""
    return Text.assemble(
        (f"{row.verdict:<11}", STYLES[row.verdict]), plain(f" {row.case} {row.dtype}{time}{message}")
    )
