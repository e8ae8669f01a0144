"""Collects the events of a run into a report, and keeps the report's file up to date meanwhile."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.running.events import Event, GaveUp, Noticed, Started
from conformance.running.in_full import in_full
from conformance.running.request import Request
from conformance.running.runner import start
from conformance.running.select import wanted
from conformance.telling import finished, summary
from conformance.telling.atomic_file import OutFile
from conformance.telling.file_lock import Held
from conformance.telling.finished import Finished
from conformance.telling.report import BaselineResult, Report, TargetInfo
from conformance.telling.resume import check_target
from conformance.telling.size_limit import within
from conformance.vectors.load import Vectors
from conformance.version import SUITE_VERSION

if TYPE_CHECKING:
    from conformance.diagnosis.finding import Diagnosed

WRITE_SECONDS = 1.0
"""How long a computed row may wait to be written."""


class Recorder:
    """The report of a run that is under way.

    `file` is kept up to date meanwhile, by this run alone while it is `held`; `others` are written at the end, each
    as what makes its text of the report; `resumed` is the report of an earlier run that this one resumes.
    """

    def __init__(
        self,
        vectors: Vectors,
        requirements: Iterable[str],
        command: Sequence[str],
        request: Request,
        file: OutFile | None = None,
        others: Sequence[tuple[OutFile, Callable[[Report], str]]] = (),
        resumed: Report | None = None,
        held: Held | None = None,
    ) -> None:
        self._vectors, self._command, self._request = vectors, tuple(command), request
        self._file, self._others, self._resumed = file, tuple(others), resumed
        covered = {requirement for case in vectors.cases for requirement in case.covers}
        self._requirements = frozenset(requirements) | covered
        self._started: Started | None = None
        self._rows: list[Row] = []
        self._found: Diagnosed | None = None
        self.compared: Sequence[Row] = ()  # what was diagnosed: with answers that a report has no room for
        self._splits: tuple[Mapping[str, Any], ...] = ()
        self._notes: tuple[Mapping[str, Any], ...] = ()
        self._written = time.monotonic()
        self._whole: list[str] = []
        self._stopped = ""
        self._held = held
        self.kept = False  # whether the file holds rows of this run
        self._noticed = resumed.noticed if resumed is not None else ""
        self.sha256 = ""  # of the file as it was written last

    def add(self, event: Event) -> None:
        """Takes in one event; writes the report if the last time is a while ago."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, GaveUp):
            self._stopped = event.why
            return
        elif isinstance(event, Noticed):
            self._noticed = event.what
            return
        else:
            self._rows.append(event)
            if time.monotonic() - self._written < WRITE_SECONDS:
                return
        if self._file is not None:
            with suppress(UsageError):  # the run goes on: what is computed is still told at its end
                self._keep(self._file, self.report())
            self._written = time.monotonic()

    def _start(self, event: Started) -> None:
        if self._resumed is not None:
            check_target(self._resumed, event, {**library_versions(), **event.hello.environment})
            baseline = self._request.baseline
            bare = (unseen(row) for row in self._resumed.results)
            self._rows = [baseline.seen(row) if baseline else row for row in bare]
        self._started = event

    @property
    def started(self) -> bool:
        """Whether there is something to report."""
        return self._started is not None

    def _keep(self, file: OutFile, report: Report) -> None:
        written = text(report)
        file.write(written)
        self.kept, self.sha256 = True, sha256(written.encode()).hexdigest()

    def write(self) -> None:
        """Writes what was recorded, if there is something, to each file, and lets others write them.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            if self.started:
                self._write_all()
        finally:
            if self._held is not None:
                self._held.release()

    def _write_all(self) -> None:
        report = self.report()
        if self._file is not None:
            self._keep(self._file, report)
            self._whole.append(str(self._file))
        for file, render in self._others:
            file.write(render(report))
            self._whole.append(str(file))

    def report(self) -> Report:
        """The report of the rows so far; its status stays open until all are there."""
        assert self._started is not None
        hello, rows = self._started.hello, within(sorted(self._rows, key=place))
        whole = not self._request.selection.narrowed and self._ended
        return Report(
            suite_version=SUITE_VERSION,
            spec_version=self._vectors.spec_version,
            vectors_sha256=self._vectors.sha256,
            target=TargetInfo(hello.name, hello.version, self._started.source, self._started.accuracy),
            environment={**library_versions(), **hello.environment},
            command=self._command,
            status=summary.status(rows, hello, whole),
            summary=summary.count(rows),
            features=summary.features(rows, hello, whole),
            profiles=summary.profiles(rows, hello, whole),
            untested_requirements=summary.untested(rows, self._requirements),
            results=rows,
            splits=self._splits,
            notes=self._notes,
            options=self._request.options,
            baseline=self._baseline(rows),
            asked=self._started.total,
            stopped=self._stopped,
            noticed=self._noticed,
        )

    @property
    def _ended(self) -> bool:
        """Whether every row is there."""
        return self._started is not None and len(self._rows) == self._started.total

    def _baseline(self, rows: Sequence[Row]) -> BaselineResult | None:
        baseline = self._request.baseline
        if baseline is None or self._started is None:
            return None
        accuracy, selection = self._started.accuracy, self._request.selection
        held = {case.id: case.judged_dtypes(accuracy) for case in self._vectors.cases}
        due = {row.key for row in rows}
        if self._ended and selection.shard is None and not selection.quick:
            due |= {
                (case.id, dtype)
                for case in self._vectors.cases
                for dtype in selection.dtypes or held[case.id]
                if wanted(case, dtype, selection)
            }
        return BaselineResult(baseline.path, baseline.problems(rows, held, due))

    def diagnose(self) -> "Diagnosed":
        """Looks for known mistakes that explain what fails; from now on the report and its rows name them."""
        from conformance.diagnosis.search import diagnose  # which takes long to import
        from conformance.telling.diagnosis import diagnosed_rows, notes_json, splits_json

        assert self._started is not None
        self.compared = self._in_full()
        found = diagnose(
            self.compared,
            self._vectors.cases,
            self._started.accuracy,
            packages=self._started.hello.environment,
        )
        found = self._experimented(found)
        self._found, self._rows = found, diagnosed_rows(self._rows, found)
        self._splits, self._notes = splits_json(found), notes_json(found)
        return found

    def _in_full(self) -> Sequence[Row]:
        """The rows, with answers that a report has no room for; as they are if the target starts no more."""
        assert self._started is not None
        cases = {case.id: case for case in self._vectors.cases}
        with suppress(UsageError):
            return in_full(self._rows, cases, self._started.accuracy, lambda: start(self._request, None)[0])
        return self._rows

    def _experimented(self, found: "Diagnosed") -> "Diagnosed":
        """With what a failing case needs, where models leave it open; as it is if the target starts no more."""
        from conformance.exploring.experiment import experiments
        from conformance.exploring.needed import settled
        from conformance.exploring.worth import worth_asking

        assert self._started is not None
        if not worth_asking(found):
            return found
        with suppress(UsageError):
            needs = experiments(
                found,
                self._rows,
                self._vectors.cases,
                self._started.accuracy,
                lambda: start(self._request, None)[0],
            )
            return settled(found, needs, self._started.accuracy)
        return found

    def finished(self) -> Finished:
        """What the run has shown, with the files that are written by now."""
        assert self._started is not None
        report, started, rows = self.report(), self._started, self._rows
        notes = (
            finished.varied(rows, started, self._request.fresh),
            summary.assumed(rows, started.hello),
            finished.undeclared(started.hello, self._request),
            finished.unrefused(started.hello, self._request),
        )
        written = (
            f"report sha256: {self.sha256}" if self.kept else "",
            f"wrote {', '.join(self._whole)}" if self._whole else "",
        )
        return Finished(
            report,
            summary.by_operation(rows, started.hello),
            finished.diagnosis(self._found, self.compared),
            finished.causes(self._found),
            self._outliers(started.accuracy),
            tuple(filter(None, notes)),
            finished.left_open(rows, started, self._request) if report.status == "incomplete" else "",
            tuple(filter(None, written)),
        )

    def _outliers(self, accuracy: str) -> tuple[str, ...]:
        if accuracy != "eager":
            return ()
        from conformance.telling.grades import outlier_lines

        return tuple(outlier_lines(self._rows, self._vectors.cases))


def unseen(row: Row) -> Row:
    """The row as it was before a baseline and a diagnosis were added to it."""
    message = "" if row.verdict == "xpass" else row.message
    return replace(row, verdict=row.judged, message=message, known=None, diagnosis=())


def text(report: Report) -> str:
    """A report as it stands in its file."""
    return json.dumps(report.to_json(), indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def place(row: Row) -> tuple[str, int]:
    """Where a row stands in every report, whenever it was found."""
    return row.case, DTYPES.index(row.dtype)


def library_versions() -> dict[str, str]:
    """What the suite runs on."""
    return {"python": platform.python_version(), "platform": platform.platform(), "numpy": np.__version__}
