"""`conformance.explore`: an exploration from Python, and what is kept of one while it goes on."""

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.api.claimed import claimed
from conformance.api.found import row_of
from conformance.api.large import LargeTrials
from conformance.api.run import FilePath, check_given
from conformance.api.wanted import FAILURES, SECONDS, Outputs, Wanted, drawn_seed
from conformance.errors import UsageError
from conformance.exploring.claims import Claims
from conformance.exploring.large.search import LargeFound, LargeTally
from conformance.exploring.recipe import TOKEN, read_token
from conformance.exploring.said import snippet
from conformance.exploring.saved import case_file, write_case
from conformance.exploring.search import Event, Found, Judged, Tally, examine
from conformance.exploring.search import explore as searched
from conformance.exploring.trial import Trials
from conformance.judging.verdict import Row
from conformance.running.baseline import read_baseline
from conformance.running.messages import Hello
from conformance.running.request import TIMEOUT, Request
from conformance.running.runner import isolated, start
from conformance.running.subprocess_target import Isolated
from conformance.telling import summary
from conformance.telling.atomic_file import check_apart, files_of
from conformance.telling.recorder import library_versions
from conformance.telling.recorder import text as report_text
from conformance.telling.report import BaselineResult, Drawing, Report, TargetInfo
from conformance.telling.requirements import in_force
from conformance.telling.size_limit import within
from conformance.vectors import load
from conformance.version import SPEC_VERSION, SUITE_VERSION


def explore(
    target: Any = None,
    *,
    command: str | Iterable[str] | None = None,
    seconds: float = SECONDS,
    cases: int | None = None,
    seed: int | None = None,
    size: str = "kernel",
    memory: float | None = None,
    max_failures: int = FAILURES,
    x: bool = False,
    save: FilePath | None = None,
    replay: str | None = None,
    op: str | None = None,
    dtype: str | Iterable[str] = (),
    feature: str | Iterable[str] = (),
    accuracy: str | None = None,
    device: str | None = None,
    timeout: float = TIMEOUT,
    baseline: FilePath | None = None,
    report: FilePath | None = None,
    junit: FilePath | None = None,
    html: FilePath | None = None,
    no_diagnose: bool = False,
) -> Report:
    """Draws fresh calls of what a target claims, judges each, and reduces and explains what fails.

    `target` and `command` are those of `conformance.run`; `seconds` and `cases` are the budget, whichever ends
    first (without `seconds`, `cases` alone); `seed` is the draw, a new one by default; `size` is `small`, `kernel` or
    `large`, of which a call takes `memory` GiB at most; `save` is a folder for the reduced calls; `replay` is a token
    that is asked instead of a draw;
    `baseline` is a file of known failures, whose cases are tokens.

    Returns:
        The report: its `drawing` says what was drawn; each distinct failure is a row with `reduced`, `fails_if`
        and `replay`. Its status is `non-conformant`, or `incomplete`, since no draw shows conformance.

    Raises:
        UsageError: the target cannot be loaded, a name is unknown, a file cannot be used.

    Example:
        >>> report = conformance.explore(attention, seconds=20)
        >>> assert not report.failed, [row.fails_if for row in report.results if row.replay]
    """
    check_given(target, command)
    request = Request.of(
        target,
        command=command,
        op=op,
        dtype=dtype,
        feature=feature,
        device=device,
        accuracy=accuracy,
        timeout=timeout,
    )
    wanted = Wanted(
        seconds, cases, drawn_seed(seed), size, memory, max_failures, x, None if save is None else Path(save),
        replay, not no_diagnose,
    )  # fmt: skip
    if baseline is not None:
        request = replace(request, baseline=read_baseline(Path(baseline)))
    exploration = Exploration(
        request, wanted, Outputs(report, junit, html), ("conformance.explore", request.source)
    )
    try:
        for _ in exploration.events():
            pass
    finally:
        exploration.write()
    return exploration.report()


class Exploration:
    """One exploration: events as they come, and the report of what came so far."""

    def __init__(self, request: Request, wanted: Wanted, outputs: Outputs, command: Iterable[str]) -> None:
        self.request, self.wanted, self._command = request, wanted, tuple(command)
        if wanted.save is not None:
            _folder(wanted.save)
        if wanted.large and request.baseline is not None:
            raise UsageError(
                "--baseline knows calls of small and kernel size: leave it out with --size large"
            )
        for entry in request.baseline.entries if request.baseline else ():
            if not entry.case.startswith(TOKEN):
                raise UsageError(
                    f"{request.baseline and request.baseline.path}: {entry.case[:60]!r} is no token: "
                    "the baseline of an exploration names what stands behind --replay"
                )
            read_token(entry.case)
        self._files = outputs.files()
        words = [*request.command, *([request.target] if isinstance(request.target, str) else [])]
        check_apart([file for file, _ in self._files], (("target", path) for path in files_of(words)))
        self.hello: Hello | None = None
        self.claimed: Claims | None = None
        self.policy = request.accuracy or "eager"
        self._tally = Tally()
        self.tally: Tally | LargeTally = LargeTally() if wanted.large else self._tally
        self.memory = 0.0  # bytes that a call of production size may take
        self._rows: list[Row] = []
        self.saved: list[Path] = []

    def events(
        self, echo: Callable[[str], None] | None = None, ready: Callable[[], None] | None = None
    ) -> Generator[Event | LargeFound, None, None]:
        """Draws until the budget is spent; calls `ready` once the target has started.

        Raises:
            UsageError: the target does not start, or claims nothing that is wanted.
        """
        if isinstance(self.tally, LargeTally):
            yield from self._large(self.tally, echo, ready)
            return
        asker, hello = start(self.request, echo)
        self.policy = self.request.accuracy or hello.accuracy
        another = partial(isolated, self.request, echo) if isinstance(asker, Isolated) else None
        trials = Trials(asker, hello, self.policy, another)
        try:
            claims = claimed(self.request, self.wanted, hello)
            self.hello, self.claimed = hello, claims
            if ready is not None:
                ready()
            drawing = self._replayed(trials, claims) if self.wanted.replay else self._drawn(trials, claims)
            self._ask_known(trials, claims)
            with closing(drawing) as events:
                for event in events:
                    yield self._taken(event)
        except BaseException:
            trials.kill()
            raise
        trials.restart()

    def _large(
        self, tally: LargeTally, echo: Callable[[str], None] | None, ready: Callable[[], None] | None
    ) -> Generator[Judged | LargeFound, None, None]:
        trials = LargeTrials(self.request, echo)
        try:
            self.policy = self.request.accuracy or trials.hello.accuracy
            claims = claimed(self.request, self.wanted, trials.hello)
            trials.settle(self.wanted.memory)
            self.memory = trials.memory
            if self.wanted.replay is not None:
                events = trials.replayed(self.wanted.replay, claims, self.policy, tally)
            else:
                events = trials.drawn(claims, self.policy, self.wanted.seed, self.wanted.budget, tally)
            self.hello = trials.hello  # from here on there is something to report
            if ready is not None:
                ready()
            with closing(events):
                for event in events:
                    known = event.known if isinstance(event, Judged) else ""
                    row = event.row
                    if known:
                        row = replace(row, message=f"the same failure as {known}: {row.message}")
                    self._rows.append(self._seen(row))
                    if isinstance(event, LargeFound):
                        self._write_report()
                    yield event
        except BaseException:
            trials.kill()
            raise
        trials.close()

    def _drawn(self, trials: Trials, claims: Claims) -> Generator[Event, None, None]:
        yield from searched(trials, claims, self.wanted.seed, self.wanted.budget, self._tally)

    def _ask_known(self, trials: Trials, claims: Claims) -> None:
        """Asks the calls of the baseline: what fails is known from now on, and so is what fails in the same way."""
        for entry in self.request.baseline.entries if self.request.baseline else ():
            tried = trials.ask(read_token(entry.case), "explore/known")
            if tried.row is None:
                raise UsageError(
                    f"{entry.case} of the baseline is a call that cannot be judged: leave it out"
                )
            self._rows.append(self._seen(replace(tried.row, case=entry.case)))
            if tried.failed and entry.reason.strip():
                self._tally.found.append(examine(trials, claims, tried, entry.case))

    def _seen(self, row: Row) -> Row:
        return self.request.baseline.seen(row) if self.request.baseline else row

    def _replayed(self, trials: Trials, claims: Claims) -> Generator[Event, None, None]:
        recipe = read_token(self.wanted.replay or "")
        self._tally.drawn = 1
        name = "explore/replayed"
        tried = trials.ask(recipe, name)
        if tried.row is None:
            raise UsageError("--replay: no expected value is derived for the call of this token")
        self._tally.judged = int(tried.row.verdict != "unsupported")
        if not tried.failed:
            yield Judged(tried.row, tried=tried)
            return
        found = examine(trials, claims, tried, name)
        self._tally.found.append(found)
        yield found

    def _taken(self, event: Event) -> Event:
        """Keeps the row of an event."""
        if isinstance(event, Judged):
            message = (
                f"the same failure as {event.known}: {event.row.message}"
                if event.known
                else event.row.message
            )
            row = replace(event.row, message=message, got=(), got_left_out="")
            if event.known.startswith(TOKEN):  # a failure of the baseline once more
                row = replace(self._seen(replace(row, case=event.known)), case=row.case)
            self._rows.append(row)
            return event
        event.row = row_of(event, self.wanted.diagnose, self.policy)
        self._rows.append(event.row)
        if self.wanted.save is not None:
            self.saved.append(write_case(self.wanted.save, self._case_of(event)))
        self._write_report()
        return event

    def _case_of(self, found: Found) -> dict[str, Any]:
        return case_file(
            found.reduced if found.fresh else found.drawn, found.name, found.needs.sentence(), found.replay,
            self.request.source, self.policy, self.snippet(found),
        )  # fmt: skip

    def snippet(self, found: Found | LargeFound) -> str:
        """A program that shows the failure without the suite; none at production size, where a token says more."""
        if isinstance(found, LargeFound):
            return ""
        library = next(iter(self.hello.environment), "numpy") if self.hello else "numpy"
        several = self.hello is not None and len(self.hello.operations) > 1
        return snippet(found.reduced if found.fresh else found.drawn, self.request.source, library, several)

    @property
    def started(self) -> bool:
        """Whether there is something to report."""
        return self.hello is not None

    def report(self) -> Report:
        """What came so far."""
        assert self.hello is not None
        rows, baseline = within(self._rows), self.request.baseline
        return Report(
            suite_version=SUITE_VERSION,
            spec_version=SPEC_VERSION,
            vectors_sha256=load.shipped_sha256(),
            target=TargetInfo(self.hello.name, self.hello.version, self.request.source, self.policy),
            environment={**library_versions(), **self.hello.environment},
            command=self._command,
            status=summary.status(rows, self.hello, whole=False),
            summary=summary.count(rows),
            features=summary.features(rows, self.hello, whole=False),
            profiles=summary.profiles(rows, self.hello, whole=False),
            untested_requirements=summary.untested(rows, in_force()),
            results=rows,
            baseline=BaselineResult(baseline.path, self._flaws()) if baseline else None,
            drawing=Drawing(self.wanted.seed, self.tally.drawn, self.tally.judged),
        )

    def _flaws(self) -> tuple[str, ...]:
        """What is wrong with the baseline, apart from calls that pass against it."""
        baseline = self.request.baseline
        if baseline is None:
            return ()
        held = {entry.case: (read_token(entry.case).dtype,) for entry in baseline.entries}
        return baseline.problems(self._rows, held, {row.key for row in self._rows})

    def _write_report(self) -> None:
        for file, make in self._files:
            if make is report_text:
                with suppress(UsageError):  # what was found is still told at the end
                    file.write(make(self.report()))

    def write(self) -> list[str]:
        """Writes what was found, if there is something, and says where.

        Raises:
            UsageError: a file cannot be written.
        """
        if not self.started:
            return []
        report = self.report()
        for file, make in self._files:
            file.write(make(report))
        return [*(str(file) for file, _ in self._files), *map(str, self.saved)]


def _folder(path: Path) -> None:
    """A folder to write to; made if its parent is there.

    Raises:
        UsageError: it cannot be used.
    """
    try:
        path.mkdir(exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "no permission to write there")
    except OSError as error:
        reason = "it exists and is not a folder" if path.exists() and not path.is_dir() else error.strerror
        raise UsageError(f"--save {str(path)!r} cannot be used: {reason}; give a folder") from error
