"""What an exploration tells people: a failure in a few lines, the progress, the last line."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from conformance.api.explore import Exploration
from conformance.exploring.large.asking import GIB
from conformance.exploring.large.search import LargeFound, LargeTally
from conformance.exploring.said import line
from conformance.exploring.search import Event, Found, Judged, Tally
from conformance.telling.progress import row_text
from conformance.telling.requirements import named_all
from conformance.telling.terminal import MESSAGE, counted, plain, safe, shorten

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


def found_lines(found: Found | LargeFound, snippet: str = "") -> list[str]:
    """A distinct failure: what failed, the smallest call, what it takes, the diagnosis, the token."""
    row = found.row
    assert row is not None
    lines = [
        f"{row.verdict}    {found.name} ({named_all(row.covers)})",
        f"        {row.message}",
        f"reduced: {row.reduced}",
        f"fails if: {found.needs.sentence()}",
        *(f"diagnosis: {line}" for line in found.diagnosis),
    ]
    if not found.fresh:
        lines.append(
            "only after other calls: in a new process the smallest call is right, so this is the drawn one"
        )
    lines.append(f"replay: --replay {found.replay}")
    if snippet:
        lines += ["without the suite:", *(f"    {line}" for line in snippet.splitlines())]
    return lines


def closing_lines(exploration: Exploration) -> list[str]:
    """What the draw met, and how 16-bit answers were judged where they could be judged more tightly."""
    if exploration.wanted.replay or exploration.claimed is None:
        return []
    lines = []
    if isinstance(exploration.tally, Tally):
        lines.append(exploration.tally.coverage.line(exploration.claimed))
    narrow = [d for d in ("float16", "bfloat16") if d in exploration.claimed.dtypes]
    if narrow and exploration.policy == "eager":
        lines.append(
            f"note: {' and '.join(narrow)} judged as `eager`, which lets logits and weights be stored in 16 bits; "
            "a kernel that keeps them in float32 declares `fused`, and is judged more tightly"
        )
    return lines


def last_line(exploration: Exploration) -> str:
    """How it ended, and how to ask the same calls again."""
    tally, wanted = exploration.tally, exploration.wanted
    found = [each for each in tally.found if each.row is not None]  # without those of the baseline
    word = f"{counted(len(found), 'distinct failure')}" if found else "nothing failed"
    again = sum(each.again for each in tally.found)
    parts = [f"{word}: {counted(tally.judged, 'call')} judged of {tally.drawn} drawn"]
    if again:
        parts.append(f"{again} more fail in the same ways")
    if tally.unjudged:
        parts.append(f"{tally.unjudged} {'left out' if isinstance(tally, LargeTally) else 'without a bound'}")
    if tally.unclaimed:
        parts.append(f"{tally.unclaimed} not claimed")
    refused = exploration.report().summary.get("unsupported", 0)
    if refused:
        parts.append(f"{refused} unsupported")
    again_by = f"--replay {wanted.replay}" if wanted.replay else f"--seed {wanted.seed} --size {wanted.size}"
    if isinstance(tally, LargeTally):
        again_by += f" --memory {exploration.memory / GIB:.1f}"
    return f"{', '.join(parts)}; {again_by}"


class Progress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, exploration: Exploration, quiet: bool, verbose: bool) -> None:
        self._console, self._exploration, self._quiet, self._verbose = console, exploration, quiet, verbose
        self._told = time.monotonic()
        self._bar: Bar | None = None
        if console.is_terminal and not quiet and not verbose:
            self._bar = Bar(
                TextColumn("{task.description}", markup=False), BarColumn(),
                TextColumn("{task.fields[said]}"), TimeElapsedColumn(), console=console, transient=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        wanted = self._exploration.wanted
        if self._bar is not None:
            self._bar.start()
            total = wanted.cases or wanted.seconds
            self._bar.add_task(safe(shorten(self._exploration.request.source)), total=total, said="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self) -> None:
        """Says what is drawn, once the target has started."""
        wanted = self._exploration.wanted
        if not self._quiet:
            drawn = f"draws from seed {wanted.seed}, size {wanted.size}"
            if wanted.large:
                drawn += f", up to {self._exploration.memory / GIB:.1f} GiB a call"
            what = "replays a token" if wanted.replay else drawn
            self._console.print(plain(what, "dim"), soft_wrap=True)

    def pause(self) -> None:
        """Whatever is printed next stands above the bar."""
        if self._bar is not None:
            self._bar.refresh()

    def show(self, event: Event | LargeFound) -> None:
        """Shows one event."""
        tally = self._exploration.tally
        if self._verbose and isinstance(event, Judged):
            self._console.print(row_text(event.row, True), soft_wrap=True)
            if event.tried is not None and event.tried.case is not None:
                said = shorten(line(event.tried.recipe, event.tried.case), MESSAGE)
                self._console.print(plain(f"        {said}", "dim"), soft_wrap=True)
        said = f"{tally.judged} judged, {counted(len(tally.found), 'failure')}"
        if self._bar is not None:
            wanted = self._exploration.wanted
            task = self._bar.tasks[0]
            done = tally.drawn if wanted.cases else task.elapsed or 0.0
            self._bar.update(task.id, completed=done, said=said)
        elif not self._quiet and time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self._console.print(plain(said, "dim"), soft_wrap=True)

    def echo(self, text: str) -> None:
        """Shows what a target's process writes to stderr."""
        for written in text.splitlines():
            self._console.print(plain(f"  | {written}", "dim"), soft_wrap=True)
