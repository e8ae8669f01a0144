"""`conformance.run`: a run from Python, with the options of the command line."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.running import runner
from conformance.running.process import split_command
from conformance.running.runner import Request
from conformance.running.select import Selection, parse_shard
from conformance.telling.outfile import OutFile
from conformance.telling.record import Recorder, ReportFile
from conformance.telling.report import Report
from conformance.telling.requirements import read_requirements
from conformance.telling.text import shorten
from conformance.vectors import load
from conformance.vectors.case import Case

LONGEST = threading.TIMEOUT_MAX / 2
"""Seconds that the system can wait, with room for what is allowed beyond; more is taken as this."""


def run(
    target: Any = None,
    *,
    command: str | Iterable[str] | None = None,
    profile: str | None = None,
    op: str | None = None,
    dtype: str | Iterable[str] = (),
    device: str | None = None,
    accuracy: str | None = None,
    k: str | None = None,
    feature: str | Iterable[str] = (),
    report: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    timeout: float = runner.TIMEOUT,
    shard: str | tuple[int, int] | None = None,
    in_process: bool = False,
    x: bool = False,
    j: int = 1,
    no_diagnose: bool = False,
) -> Report:
    """Runs the suite against a target, and returns what it has shown.

    `target` is a backend's name, `package.module:attribute`, `path/to/file.py:attribute`, or a Python object,
    which is called in this process; `command` is instead a program that speaks the line protocol.
    `report` is a file that is kept up to date while the run goes on, `html` a page over the run at its end.
    The rest is as in `mha-conformance run`; several dtypes or features are given as an iterable.

    Returns:
        The report; its `status` is `conformant`, `non-conformant` or `incomplete`.

    Raises:
        UsageError: the target cannot be loaded, a name is unknown, or nothing is left to run.

    Example:
        >>> report = conformance.run(attention, dtype="float32")
        >>> assert report.status == "conformant", [row.message for row in report.results if row.failed]
    """
    request = make_request(
        target, command=command, profile=profile, op=op, dtype=dtype, device=device, accuracy=accuracy, k=k,
        feature=feature, timeout=timeout, shard=shard, in_process=in_process, x=x, j=j,
    )  # fmt: skip
    recorder, cases = prepare(request, ("conformance.run", request.source), report, html)
    try:
        for event in runner.run(request, cases):
            recorder.add(event)
        if not no_diagnose:
            recorder.diagnose()
    finally:
        recorder.write()
    return recorder.report()


def make_request(
    target: Any = None,
    *,
    command: str | Iterable[str] | None = None,
    profile: str | None = None,
    op: str | None = None,
    dtype: str | Iterable[str] = (),
    device: str | None = None,
    accuracy: str | None = None,
    k: str | None = None,
    feature: str | Iterable[str] = (),
    timeout: float = runner.TIMEOUT,
    shard: str | tuple[int, int] | None = None,
    in_process: bool = False,
    x: bool = False,
    j: int = 1,
    path: Iterable[str] = (),
) -> Request:
    """What is to be run, from the words of `run`; `path` holds folders that the target may import from.

    Raises:
        UsageError: a name is unknown, or there is no target.
    """
    if (target is None) == (command is None):
        raise UsageError(
            "conformance.run wants either a target, as in run(attention) or run('numpy'), "
            "or a program, as in run(command='node impl.js')"
        )
    if target is not None and not isinstance(target, str) and _is_plain(target):
        raise UsageError(
            f"conformance.run wants a function, an object with the operations as methods, or the name of a "
            f"target, not {type(target).__name__} {shorten(repr(target))}"
        )
    return Request(
        target=target,
        command=split_command(command),
        selection=Selection(
            profile=profile,
            operation=op,
            dtypes=_several(dtype),
            expression=k,
            features=_several(feature),
            shard=parse_shard(shard) if isinstance(shard, str) else shard,
        ),
        device=device,
        accuracy=accuracy,
        timeout=min(timeout, LONGEST),
        in_process=in_process,
        stop_at_failure=x,
        workers=j,
        path=tuple(path),
    )


def prepare(
    request: Request,
    command: Iterable[str],
    report: str | os.PathLike[str] | None,
    html: str | os.PathLike[str] | None = None,
) -> tuple[Recorder, tuple[Case, ...]]:
    """Reads what a run needs, and finds out whether its report and its page can be written.

    Raises:
        UsageError: the vectors or the specification are damaged, or the report cannot be written.
    """
    file = None if report is None else ReportFile(Path(report))
    vectors = load.load_vectors()
    requirements = [r.id for r in read_requirements() if not r.withdrawn]
    page = None if html is None else OutFile(Path(html), "page")
    recorder = Recorder(vectors, requirements, tuple(command), request.selection.narrowed, file, page)
    return recorder, vectors.cases


def _is_plain(target: Any) -> bool:
    """Whether it is data, which can be no implementation."""
    return type(target).__module__ == "builtins" and not callable(target) and not hasattr(target, "__dict__")


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
