"""`mha-conformance run`."""

import os
import shlex
from pathlib import Path

import click

from conformance.cli.exits import CONFORMANT, FAILED, PROGRAM, examples
from conformance.cli.interrupts import interrupted, interruptible
from conformance.errors import UsageError
from conformance.running import runner
from conformance.running.isolated import FIRST_CASE_SECONDS
from conformance.running.process import split_command
from conformance.running.runner import Request
from conformance.running.select import Selection, by_profile, parse_shard
from conformance.telling.alike import alike, dead_lines
from conformance.telling.github import VARIABLE, run_markdown
from conformance.telling.progress import RunProgress
from conformance.telling.record import Recorder
from conformance.telling.report import Report
from conformance.telling.requirements import read_requirements
from conformance.telling.run import LONGEST, Files, prepare
from conformance.telling.table import blame_table, run_table, summary_lines
from conformance.telling.text import MESSAGE, console, counted, plain, shorten
from conformance.vectors.case import Case

FILE = click.Path(path_type=Path)
_LONGER = "fix what hangs, or raise --timeout"


@click.command(
    epilog=examples(
        "run numpy --report numpy.json",
        "run my_attention.py:attention --dtype float32 -k 'mask or window'",
        "run --command 'node impl.js' --profile core",
    )
)
@click.argument("target", required=False)
@click.option(
    "--command", metavar="PROGRAM", help="Test a program that speaks the line protocol, in place of TARGET."
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Test a profile; fails if any of its features is missing or wrong. "
    "`quick` is about 60 tests of few shapes.",
)
@click.option(
    "--op",
    metavar="NAME",
    help="Test this operation only; also the operation of a function with another name.",
)
@click.option("--dtype", "dtypes", metavar="D", multiple=True, help="Test this dtype only (repeatable).")
@click.option("--device", metavar="DEV", help="Device on which the arrays are made.")
@click.option(
    "--accuracy", metavar="POLICY", help="Tolerance policy, in place of the one that the target declares."
)
@click.option(
    "-k",
    "expression",
    metavar="EXPR",
    help="Only cases whose ID, dtype or requirement matches: 'mask and not float16'.",
)
@click.option(
    "--feature",
    "features",
    metavar="F",
    multiple=True,
    help="Only cases that need this feature (repeatable).",
)
@click.option(
    "--case",
    "files",
    type=FILE,
    metavar="FILE",
    multiple=True,
    help="Test only the call in a file that `explore --save` wrote (repeatable).",
)
@click.option(
    "--report", type=FILE, metavar="OUT.json", help="Write the report as JSON, updated during the run."
)
@click.option("--junit", type=FILE, metavar="OUT.xml", help="Write JUnit XML.")
@click.option(
    "--badge",
    type=FILE,
    metavar="OUT.svg",
    help="Write a badge: SVG to a name in .svg, the form of shields.io to one in .json.",
)
@click.option("--baseline", type=FILE, metavar="KNOWN.toml", help="Known failures, each with its reason.")
@click.option(
    "--write-baseline",
    type=FILE,
    metavar="OUT.toml",
    help="Write the failures as a baseline; you fill in the reasons.",
)
@click.option("--resume", type=FILE, metavar="REPORT", help="Continue an interrupted run and its report.")
@click.option(
    "--fresh",
    metavar="SEED|off",
    help="Seed of the randomised repetitions of some tests; a new one by default.",
)
@click.option(
    "--timeout",
    type=float,
    default=runner.TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help=f"Time limit per test; {FIRST_CASE_SECONDS:g} s more for the first of each process.",
)
@click.option(
    "-j", "workers", type=int, default=1, show_default=True, metavar="N", help="Number of worker processes."
)
@click.option("--shard", metavar="I/N", help="Run part I of N; the parts are the same on every machine.")
@click.option(
    "--in-process",
    is_flag=True,
    help="Run without isolation, for debugging: faster, but a crash of the target ends the run, "
    "and there is no time limit.",
)
@click.option("-x", "stop", is_flag=True, help="Stop at the first failure.")
@click.option("--no-diagnose", is_flag=True, help="Do not look for known mistakes that explain the failures.")
@click.option("-q", "quiet", is_flag=True, help="Print the last line only.")
@click.option("-v", "verbose", is_flag=True, help="Print every test, and what the target writes to stderr.")
@click.option("--html", type=FILE, metavar="OUT.html", help="Write an HTML report.")
@click.pass_obj
def run(
    given: list[str],
    target: str | None,
    command: str | None,
    profile: str | None,
    op: str | None,
    dtypes: tuple[str, ...],
    device: str | None,
    accuracy: str | None,
    expression: str | None,
    features: tuple[str, ...],
    files: tuple[Path, ...],
    report: Path | None,
    junit: Path | None,
    badge: Path | None,
    baseline: Path | None,
    write_baseline: Path | None,
    resume: Path | None,
    fresh: str | None,
    timeout: float,
    workers: int,
    shard: str | None,
    in_process: bool,
    stop: bool,
    no_diagnose: bool,
    quiet: bool,
    verbose: bool,
    html: Path | None,
) -> int:
    """Test TARGET with every case that it supports.

    TARGET is a backend's name, package.module:attribute or path/to/file.py:attribute.
    """
    request = request_of(
        target,
        command,
        profile,
        op,
        dtypes,
        device,
        accuracy,
        expression,
        features,
        timeout,
        workers,
        shard,
        in_process,
        stop,
    )
    paths = Files(report, html, junit, badge, baseline, write_baseline, resume, files)
    recorder = None
    with interruptible():
        try:
            ready, recorder, cases = prepare(request, (PROGRAM, *given), paths, fresh)
            diagnose = not no_diagnose and (paths.written or not quiet)
            return _run(ready, recorder, cases, quiet, verbose, diagnose)
        except KeyboardInterrupt as error:
            kept = recorder is not None and recorder.kept
            raise KeyboardInterrupt(_going_on(report, resume, kept)) from error
        except (OSError, SystemExit) as error:  # rich exits where a pipe is closed
            if interrupted(error):
                raise KeyboardInterrupt from error
            raise


def _going_on(report: Path | None, resume: Path | None, kept: bool) -> str:
    """How an interrupted run is resumed; `kept` says that its report holds what there is."""
    if not kept and resume is None:
        return "to be able to resume, run with --report FILE" if report is None else "nothing was run yet"
    there = report if kept and report is not None else resume
    return f"to continue, repeat the command with --resume {shlex.quote(str(there))}"


def request_of(
    target: str | None,
    command: str | None,
    profile: str | None,
    op: str | None,
    dtypes: tuple[str, ...],
    device: str | None,
    accuracy: str | None,
    expression: str | None,
    features: tuple[str, ...],
    timeout: float,
    workers: int,
    shard: str | None,
    in_process: bool,
    stop: bool = False,
) -> Request:
    """What is to be run, from the options of the command line.

    Raises:
        UsageError: they do not go together, or a name is unknown.
    """
    return Request(
        target=target,
        command=split_command(command),
        selection=Selection(
            **by_profile(profile),
            operation=op,
            dtypes=dtypes,
            expression=expression,
            features=features,
            shard=parse_shard(shard) if shard is not None else None,
        ),
        device=device,
        accuracy=accuracy,
        timeout=min(timeout, LONGEST),
        in_process=in_process,
        stop_at_failure=stop,
        workers=workers,
    )


def _run(
    request: Request,
    recorder: Recorder,
    cases: tuple[Case, ...],
    quiet: bool,
    verbose: bool,
    diagnose: bool,
) -> int:
    """Runs, and tells what was found however that ends.

    Raises:
        KeyboardInterrupt: it was interrupted; what there is has been written and printed.
    """
    profile = request.selection.profile  # of the specification, which quick is not
    progress = RunProgress(console(stderr=True), quiet, verbose)
    try:
        with progress:
            for event in runner.run(request, cases, progress.echo if verbose else None):
                recorder.add(event)
                progress.show(event)
        if diagnose:
            recorder.diagnose()
    finally:
        try:
            recorder.write()
        finally:
            if recorder.started:
                _print_run(recorder, profile, quiet)
                _summarise(recorder.report())
    return exit_status(recorder.report(), profile)


def _print_run(recorder: Recorder, profile: str | None, quiet: bool) -> None:
    out, report = console(), recorder.report()
    if not quiet:
        out.print(run_table(report))
        if report.gave_up:
            out.print(plain(f"{report.gave_up}; {_LONGER}", "bold red"), soft_wrap=True)
        if report.failed:
            out.print(blame_table(report.results, read_requirements(), recorder.causes()))
        for told in dead_lines(report.results):
            out.print(plain(shorten(told, MESSAGE)), soft_wrap=True)
        if told := alike(report.results):
            out.print(plain(told), soft_wrap=True)
        for sentence in recorder.diagnosis():
            out.print(plain(shorten(sentence, MESSAGE)), soft_wrap=True)
        for outlier in recorder.outliers():
            out.print(plain(outlier), soft_wrap=True)
        if told := recorder.varied():
            out.print(plain(told), soft_wrap=True)
        if hint := recorder.assumed():
            out.print(plain(hint), soft_wrap=True)
        if told := recorder.undeclared():
            out.print(plain(told), soft_wrap=True)
        if report.status == "incomplete":
            out.print(plain(shorten(_left_open(recorder), MESSAGE)), soft_wrap=True)
        for told in filter(None, (recorder.checksum(), recorder.written())):
            out.print(plain(told), soft_wrap=True)
    for problem in report.baseline.problems if report.baseline else ():
        out.print(plain(problem, "red"), soft_wrap=True)
    for line in summary_lines(report, profile):
        out.print(line, soft_wrap=True)


def _left_open(recorder: Recorder) -> str:
    """Why the status is incomplete, and what was seen all the same: nothing has failed."""
    passed = recorder.report().summary["pass"]
    seen = "; every test that was run passes" if passed else ""
    return f"incomplete because {recorder.left_open()}{seen}"


def _summarise(report: Report) -> None:
    """Adds the run to the summary of a step on GitHub, if this is one."""
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8", opener=_at_once) as file:
            file.write(run_markdown(report, read_requirements()))


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def exit_status(report: Report, profile: str | None) -> int:
    """The exit status of a finished run.

    Raises:
        UsageError: nothing was executed, which shows nothing.
    """
    if not report.executed:
        raise UsageError(
            f"nothing was executed: {report.target.source} supports none of {counted(len(report.results), 'case')}; "
            f"{report.results[0].case}: {report.results[0].message}"
        )
    met = profile is None or report.profiles[profile] == "conformant"
    return CONFORMANT if report.as_expected and met else FAILED
