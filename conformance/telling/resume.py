"""Whether a run can go on where an earlier one ended: only what was asked and judged alike can be joined."""

from collections.abc import Mapping
from typing import Any

from conformance.errors import UsageError
from conformance.running.events import Started
from conformance.running.request import Request
from conformance.telling.report import Report
from conformance.telling.terminal import shorten
from conformance.vectors.load import Vectors
from conformance.version import SUITE_VERSION


def check_request(report: Report, request: Request, vectors: Vectors) -> None:
    """Refuses another suite, other vectors or other options, before anything is started; and rows of no case.

    Raises:
        UsageError: one of them differs.
    """
    _same("suite", report.suite_version, SUITE_VERSION)
    _same("vectors", report.vectors_sha256, vectors.sha256)
    _same("target", report.target.source, request.source)
    if report.options is None:
        raise UsageError("--resume: the report does not say its options; start a new run")
    for name, value in request.options.items():
        _same(("-" if len(name) == 1 else "--") + name, report.options[name], value)
    cases = {case.id: case for case in vectors.cases}
    for row in report.results:
        case = cases.get(row.case)
        if case is None or (row.operation, row.covers, row.features) != (
            case.operation,
            case.covers,
            case.features,
        ):
            raise UsageError(
                f"--resume: the report was edited: its row {shorten(row.case)} {row.dtype} is of no case; "
                "start a new run"
            )


def check_target(report: Report, started: Started, environment: Mapping[str, str]) -> None:
    """Refuses another target, or the same one among other libraries.

    Raises:
        UsageError: it is not what the report is about.
    """
    hello, target = started.hello, report.target
    _same("target's name", target.name, hello.name)
    _same("target's version", target.version, hello.version)
    _same("accuracy", target.accuracy, started.accuracy)
    for library in sorted({*report.environment, *environment}):
        _same(library, report.environment.get(library), environment.get(library))
    if len(report.results) != started.done:
        raise UsageError(
            f"--resume: the report was edited: {len(report.results)} rows, {started.done} of them of this run; "
            "start a new run"
        )


def _same(what: str, before: Any, now: Any) -> None:
    if before != now:
        was, has = (shorten(_told(value)) for value in (before, now))
        raise UsageError(
            f"--resume: the report is of another run: {what} was {was} and is {has}; start a new run"
        )


def _told(value: Any) -> str:
    return "not given" if value in (None, []) else " ".join(value) if isinstance(value, list) else str(value)
