"""`conformance.run`: a run from Python, with the options of the command line."""

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.running import runner
from conformance.running.baseline import read_baseline
from conformance.running.request import TIMEOUT, Request
from conformance.telling.atomic_file import OutFile, check_apart, files_of
from conformance.telling.badge import badge_writer, check_ending
from conformance.telling.baseline_writer import baseline_text
from conformance.telling.file_lock import Held
from conformance.telling.recorder import Recorder
from conformance.telling.report import Report, read_report
from conformance.telling.requirements import in_force
from conformance.telling.resume import check_request
from conformance.telling.terminal import shorten
from conformance.vectors import load
from conformance.vectors.case import Case
from conformance.vectors.load import Vectors

SEEDS = 10**6
"""How many seeds a run without one chooses from: short enough to be typed again."""

FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class Files:
    """Where a run reads from and writes to, in addition to the vectors."""

    report: FilePath | None = None
    html: FilePath | None = None
    junit: FilePath | None = None
    badge: FilePath | None = None
    baseline: FilePath | None = None
    write_baseline: FilePath | None = None
    resume: FilePath | None = None
    cases: Sequence[FilePath] = ()  # of calls that are asked instead of the vectors
    card: FilePath | None = None
    link: str = ""  # on the card

    @property
    def written(self) -> bool:
        """Whether something is written that tells of the rows."""
        return any(path is not None for path in (self.report, self.html, self.junit, self.card, self.resume))


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
    report: FilePath | None = None,
    html: FilePath | None = None,
    junit: FilePath | None = None,
    badge: FilePath | None = None,
    card: FilePath | None = None,
    link: str = "",
    baseline: FilePath | None = None,
    write_baseline: FilePath | None = None,
    resume: FilePath | None = None,
    fresh: int | str | None = None,
    case: FilePath | Iterable[FilePath] = (),
    timeout: float = TIMEOUT,
    shard: str | tuple[int, int] | None = None,
    in_process: bool = False,
    x: bool = False,
    j: int = 1,
    no_diagnose: bool = False,
) -> Report:
    """Runs the suite against a target, and returns what it has shown.

    `target` is a backend's name, `package.module:attribute`, `path/to/file.py:attribute`, or a Python object,
    which is called in this process; `command` is instead a program that speaks the line protocol.
    `report` is a file that is kept up to date while the run goes on; `html`, a page over the run, `junit`, `badge`,
    `card`, a picture to share with the address `link` on it, and `write_baseline` are written at its end;
    `resume` is a report that the run resumes, and writes to unless `report` is another. `fresh` is the seed of the
    variants of cases that are asked as well, `"off"` asks none. `case` names files of calls that `explore` saved,
    which are asked instead of the stored cases.
    The rest is as in `mha-conformance run`; several dtypes or features are given as an iterable.

    Returns:
        The report; its `status` is `conformant`, `non-conformant` or `incomplete`, and `as_expected` says
        whether all that fails stands in the baseline. `noticed` says that wrong answers are right in another
        layout, where that was found.

    Raises:
        UsageError: the target cannot be loaded, a name is unknown, a file cannot be used, or nothing is left to
            run.

    Example:
        >>> report = conformance.run(attention, dtype="float32")
        >>> assert report.status == "conformant", [row.message for row in report.results if row.failed]
    """
    check_given(target, command)
    request = Request.of(
        target, command=command, profile=profile, op=op, dtype=dtype, device=device, accuracy=accuracy, k=k,
        feature=feature, timeout=timeout, shard=shard, in_process=in_process, x=x, j=j,
    )  # fmt: skip
    files = Files(report, html, junit, badge, baseline, write_baseline, resume, _paths(case), card, link)
    request, recorder, cases = prepare(request, ("conformance.run", request.source), files, fresh)
    try:
        for event in runner.run(request, cases):
            recorder.add(event)
        if not no_diagnose:
            recorder.diagnose()
    finally:
        recorder.write()
    return recorder.report()


def check_given(target: Any, command: Any) -> None:
    """Whether there is something to ask, in the words of Python.

    Raises:
        UsageError: there is neither a target nor a program, or both.
    """
    if (target is None) == (command is None):
        raise UsageError(
            "conformance.run wants either a target, as in run(attention) or run('numpy'), "
            "or a program, as in run(command='node impl.js')"
        )


def prepare(
    request: Request, command: Iterable[str], files: Files, fresh: int | str | None = None
) -> tuple[Request, Recorder, tuple[Case, ...]]:
    """Reads what a run needs, finds out whether what it writes can be written, and completes the request.

    Raises:
        UsageError: the vectors, the specification, the baseline or the report to resume are damaged or of
            another run, or a file cannot be written.
    """
    if files.badge is not None:
        check_ending(Path(files.badge))
    if files.card is not None or files.link:
        from conformance.telling.page.card import check_card  # takes time to import, which other runs save

        check_card(None if files.card is None else Path(files.card), files.link)
    report = files.resume if files.report is None else files.report
    file = None if report is None else OutFile(Path(report), "report")
    others = [
        (OutFile(Path(path), what), render)
        for path, what, render in (
            (files.html, "page", page_text),
            (files.junit, "JUnit file", junit_text),
            (files.badge, "badge", badge_writer(Path(files.badge or ""), request.selection.profile)),
            (files.card, "card", partial(card_text, link=files.link)),
            (files.write_baseline, "baseline", baseline_text),
        )
        if path is not None
    ]
    _check_reasons(files)
    written = [*([file] if file else []), *(each for each, _ in others)]
    _check_apart(request, files, written)
    held = Held(written)
    try:
        request, vectors, resumed = _complete(request, files, fresh)
        requirements = in_force()
    except BaseException:
        held.release()
        raise
    return (
        request,
        Recorder(vectors, requirements, tuple(command), request, file, others, resumed, held),
        vectors.cases,
    )


def _complete(
    request: Request, files: Files, fresh: int | str | None
) -> tuple[Request, Vectors, Report | None]:
    """The request with all that is read for it, the vectors, and the report that it resumes."""
    seed = fresh_seed(fresh)
    if files.baseline is not None:
        request = replace(request, baseline=read_baseline(Path(files.baseline)))
    vectors = load.load_vectors()
    if files.cases:
        vectors = saved_vectors(vectors, files.cases)
        seed = None  # a variant of a call that fails says nothing of it
        narrowed = replace(request.selection, files=tuple(map(str, files.cases)))
        request = replace(request, selection=narrowed)
    resumed = None if files.resume is None else read_report(Path(files.resume))
    if resumed is not None:
        if fresh is None and resumed.options is not None:
            seed = resumed.options["fresh"]
        request = replace(request, done=frozenset(row.key for row in resumed.results))
    request = replace(request, fresh=seed)
    if resumed is not None:
        check_request(resumed, request, vectors)
    return request, vectors, resumed


def saved_vectors(vectors: load.Vectors, files: Iterable[FilePath]) -> load.Vectors:
    """The calls of files in place of the stored cases; the same hash, since no stored case is another one.

    Raises:
        UsageError: a file cannot be read, or two of them hold a case of one name.
    """
    from conformance.exploring.saved import read_cases  # which takes the oracle in

    found = [case for path in files for case in read_cases(Path(path))]
    names = [case.id for case in found]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise UsageError(f"--case: two of the files hold {twice}; give each once")
    return replace(vectors, cases=tuple(found))


def junit_text(report: Report) -> str:
    """The run as JUnit XML."""
    from conformance.telling.junit import junit  # takes time to import, which other runs need not wait for

    return junit(report)


def page_text(report: Report) -> str:
    """The page over one run."""
    from conformance.telling.page import render  # as of JUnit

    return render([report])


def card_text(report: Report, link: str) -> str:
    """The picture of one run, with the address of the whole report."""
    from conformance.telling.page.card import card  # as of JUnit

    return card([report], link)


def fresh_seed(fresh: int | str | None) -> int | None:
    """The seed of the variants: the one given, a new one for None, none for `off`.

    Raises:
        UsageError: it is neither.
    """
    if fresh is None:
        return secrets.randbelow(SEEDS)
    if fresh == "off":
        return None
    text = str(fresh)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"--fresh wants a whole number from 0 on, or off, got {shorten(text)!r}")
    return int(text)


def _check_reasons(files: Files) -> None:
    """A baseline that somebody has filled in is not written over, unless its reasons are read first."""
    if files.write_baseline is None:
        return
    path = Path(files.write_baseline)
    known = files.baseline is not None and path.resolve() == Path(files.baseline).resolve()
    if path.exists() and not known:
        raise UsageError(
            f"{path} is there already: give it as --baseline as well, so that its reasons are kept, or another name"
        )


def _check_apart(request: Request, files: Files, written: Sequence[OutFile]) -> None:
    """No output is a file that the run reads, nor another output; two inputs may be written over on purpose."""
    words = [*request.command, *([request.target] if isinstance(request.target, str) else [])]
    read: list[tuple[str, FilePath]] = [("target", path) for path in files_of(words)]
    if files.baseline and not _same(files.baseline, files.write_baseline):
        read.append(("baseline of the run", files.baseline))
    if files.resume and not _same(files.resume, files.report or files.resume):
        read.append(("report to resume", files.resume))
    check_apart(written, read)


def _same(one: FilePath, other: FilePath | None) -> bool:
    return other is not None and os.path.realpath(one) == os.path.realpath(other)


def _paths(case: FilePath | Iterable[FilePath]) -> tuple[FilePath, ...]:
    return (case,) if isinstance(case, str | os.PathLike) else tuple(case)
