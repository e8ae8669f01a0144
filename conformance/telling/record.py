"""Collects the events of a run into a report, and keeps the report's file up to date meanwhile."""

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.running.runner import Event, Started
from conformance.telling import summary
from conformance.telling.outfile import OutFile
from conformance.telling.report import Report, TargetInfo
from conformance.telling.small import within
from conformance.telling.text import counted
from conformance.vectors.load import Vectors
from conformance.version import SUITE_VERSION

if TYPE_CHECKING:
    from conformance.diagnosis.finding import Diagnosed

WRITE_SECONDS = 1.0
"""How long a computed row may wait to be written."""


class ReportFile:
    """Where a report goes; every write replaces the whole file, so that a reader never sees half of one.

    Raises:
        UsageError: it could not be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._try(path)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that go round in a circle
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise UsageError(f"report {str(path)!r} cannot be written: {reason}") from error

    def _try(self, path: Path) -> None:
        self._path = path.resolve()  # replaces what a link points to, not the link
        if self._path.exists() and not self._path.is_file():
            raise ValueError("it is there, and no file; give the name of a file")
        if not self._path.parent.is_dir():
            raise ValueError(f"{self._path.parent} is no folder; make it first")
        beside = self._beside()
        beside.touch()
        beside.unlink()

    def _beside(self) -> Path:
        """The file that becomes the report once it is whole."""
        return self._path.with_name(f".{self._path.name[:40]}.{os.getpid()}")

    def write(self, report: Report) -> None:
        """Replaces the file.

        Raises:
            UsageError: the disk is full, say.
        """
        text = json.dumps(report.to_json(), indent=1, allow_nan=False, ensure_ascii=True) + "\n"
        beside = self._beside()
        try:
            beside.write_text(text, "utf-8")
            beside.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise UsageError(f"report {self._path} cannot be written: {error.strerror}") from error


class Recorder:
    """The report of a run that is under way; `narrowed` says what left out a part of the suite."""

    def __init__(
        self,
        vectors: Vectors,
        requirements: Iterable[str],
        command: Sequence[str],
        narrowed: str = "",
        file: ReportFile | None = None,
        page: OutFile | None = None,
    ) -> None:
        self._page = page
        self._vectors, self._command, self._narrowed, self._file = vectors, tuple(command), narrowed, file
        covered = {requirement for case in vectors.cases for requirement in case.covers}
        self._requirements = frozenset(requirements) | covered
        self._started: Started | None = None
        self._rows: list[Row] = []
        self._found: Diagnosed | None = None
        self._written = time.monotonic()

    def add(self, event: Event) -> None:
        """Takes in one event; writes the report if the last time is a while ago."""
        if isinstance(event, Started):
            self._started = event
            return
        self._rows.append(event)
        if self._file is not None and time.monotonic() - self._written >= WRITE_SECONDS:
            with suppress(UsageError):  # the run goes on: what is computed is still told at its end
                self._file.write(self.report())
            self._written = time.monotonic()

    @property
    def started(self) -> bool:
        """Whether there is something to report."""
        return self._started is not None

    def write(self) -> None:
        """Writes what was recorded, if there is something and a file for it.

        Raises:
            UsageError: it cannot be written.
        """
        if self._file is not None and self.started:
            self._file.write(self.report())
        if self._page is not None and self.started:
            from conformance.telling.page import (
                render,
            )  # takes time to import, which other runs need not wait for

            self._page.write(render([self.report()]))

    def report(self) -> Report:
        """The report of the rows so far; its status stays open until all are there."""
        assert self._started is not None
        hello, rows = self._started.hello, within(sorted(self._rows, key=place))
        whole = not self._narrowed and len(rows) == self._started.total
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
        )

    def diagnose(self) -> "Diagnosed":
        """Looks for known mistakes that explain what fails; from now on the report and its rows name them."""
        from conformance.diagnosis.search import diagnose  # which takes long to import
        from conformance.telling.diagnosis import diagnosed_rows

        assert self._started is not None
        found = diagnose(self._rows, self._vectors.cases, self._started.accuracy)
        self._found, self._rows = found, diagnosed_rows(self._rows, found)
        return found

    def diagnosis(self) -> list[str]:
        """What was found, in sentences; none if it was not looked for."""
        if self._found is None:
            return []
        from conformance.telling.diagnosis import diagnosis_lines

        return [f"diagnosis: {line}" for line in diagnosis_lines(self._found)]

    def assumed(self) -> str:
        """What to say of failures that all lie in what the target claims only by default; empty otherwise."""
        assert self._started is not None
        return summary.assumed(self._rows, self._started.hello)

    def left_open(self) -> str:
        """Why an incomplete run is incomplete."""
        assert self._started is not None
        hello, rows = self._started.hello, self._rows
        reasons = []
        if self._narrowed:
            reasons.append(f"{self._narrowed} left out a part of the suite")
        if len(rows) < self._started.total:
            reasons.append(f"only {len(rows)} of {counted(self._started.total, 'row')} were run")
        reasons += summary.unsupported_claims(rows, hello)
        return "; ".join(reasons) or "no row of what is claimed was run"


def place(row: Row) -> tuple[str, int]:
    """Where a row stands in every report, whenever it was found."""
    return row.case, DTYPES.index(row.dtype)


def library_versions() -> dict[str, str]:
    """What the suite runs on."""
    return {"python": platform.python_version(), "platform": platform.platform(), "numpy": np.__version__}
