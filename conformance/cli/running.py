"""`mha-conformance run`."""

import shlex
from collections.abc import Iterator
from typing import Any

import click

from conformance.api.run import Files, prepare
from conformance.cli import options
from conformance.cli.exit_codes import CONFORMANT, FAILED, PROGRAM, examples
from conformance.cli.interrupts import interrupted, interruptible
from conformance.errors import UsageError
from conformance.running import runner
from conformance.running.request import Request
from conformance.running.subprocess_target import FIRST_CASE_SECONDS
from conformance.telling.common_failure import alike, dead_lines
from conformance.telling.finished import Finished
from conformance.telling.github import run_markdown, summarise
from conformance.telling.progress import RunProgress
from conformance.telling.recorder import Recorder
from conformance.telling.report import Report
from conformance.telling.requirements import read_requirements
from conformance.telling.table import blame_table, run_table, summary_lines
from conformance.telling.terminal import MESSAGE, console, counted, plain, shorten, table_width
from conformance.vectors.case import Case

_LONGER = "fix what hangs, or raise --timeout"


@click.command(
    epilog=examples(
        "run numpy --report numpy.json",
        "run my_attention.py:attention --dtype float32 -k 'mask or window'",
        "run --command 'node impl.js' --profile core",
    )
)
@options.target
@options.command
@click.option(
    "--profile",
    metavar="NAME",
    help="Test a profile; fails if any of its features is missing or wrong. "
    "`quick` is about 60 tests of few shapes.",
)
@options.op
@options.dtype
@options.device
@options.accuracy
@click.option(
    "-k",
    "k",
    metavar="EXPR",
    help="Only cases whose ID, dtype or requirement matches: 'mask and not float16'.",
)
@options.feature("cases")
@click.option(
    "--case",
    "cases",
    type=options.FILE,
    metavar="FILE",
    multiple=True,
    help="Test only the call in a file that `explore --save` or `show --save` wrote (repeatable).",
)
@options.report
@options.junit
@click.option(
    "--badge",
    type=options.FILE,
    metavar="OUT.svg",
    help="Write a badge: SVG to a name in .svg, the form of shields.io to one in .json.",
)
@options.card
@options.link
@options.baseline("Known failures, each with its reason.")
@click.option(
    "--write-baseline",
    type=options.FILE,
    metavar="OUT.toml",
    help="Write the failures as a baseline; you fill in the reasons.",
)
@click.option(
    "--resume", type=options.FILE, metavar="REPORT", help="Continue an interrupted run and its report."
)
@click.option(
    "--fresh",
    metavar="SEED|off",
    help="Seed of the randomised repetitions of some tests; a new one by default.",
)
@options.timeout(f"Time limit per test; {FIRST_CASE_SECONDS:g} s more for the first of each process.")
@click.option(
    "-j", "j", type=int, default=1, show_default=True, metavar="N", help="Number of worker processes."
)
@click.option("--shard", metavar="I/N", help="Run part I of N; the parts are the same on every machine.")
@click.option(
    "--in-process",
    is_flag=True,
    help="Run without isolation, for debugging: faster, but a crash of the target ends the run, "
    "and there is no time limit.",
)
@options.stop
@options.no_diagnose
@options.quiet
@options.verbose("Print every test, and what the target writes to stderr.")
@options.html
@click.pass_obj
def run(
    given: list[str],
    /,
    fresh: str | None,
    no_diagnose: bool,
    quiet: bool,
    verbose: bool,
    **given_options: Any,
) -> int:
    """Test TARGET with every case that it supports.

    TARGET is a backend's name, package.module:attribute or path/to/file.py:attribute.
    """
    request = options.request_of(given_options)
    files = Files(**given_options)
    recorder = None
    with interruptible():
        try:
            ready, recorder, cases = prepare(request, (PROGRAM, *given), files, fresh)
            diagnose = not no_diagnose and (files.written or not quiet)
            return _run(ready, recorder, cases, quiet, verbose, diagnose)
        except KeyboardInterrupt as error:
            kept = recorder is not None and recorder.kept
            raise KeyboardInterrupt(_going_on(files, kept)) from error
        except (OSError, SystemExit) as error:  # rich exits where a pipe is closed
            if interrupted(error):
                raise KeyboardInterrupt from error
            raise


def _going_on(files: Files, kept: bool) -> str:
    """How an interrupted run is resumed; `kept` says that its report holds what there is."""
    if not kept and files.resume is None:
        return (
            "to be able to resume, run with --report FILE" if files.report is None else "nothing was run yet"
        )
    there = files.report if kept and files.report is not None else files.resume
    return f"to continue, repeat the command with --resume {shlex.quote(str(there))}"


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
            for event in runner.run(request, cases, progress.echo if verbose else None, progress.asking):
                recorder.add(event)
                progress.show(event)
        if diagnose:
            recorder.diagnose()
    finally:
        try:
            recorder.write()
        finally:
            finished = recorder.finished() if recorder.started else None
            if finished is not None:
                _print_run(finished, profile, quiet)
                summarise(run_markdown(finished.report, read_requirements(), profile, finished.diagnosis))
    assert finished is not None
    return exit_status(finished.report, profile)


def _print_run(finished: Finished, profile: str | None, quiet: bool) -> None:
    out, report = console(), finished.report
    if not quiet:
        out.print(run_table(report))
        if finished.by_operation:
            out.print(plain(finished.by_operation), soft_wrap=True)
        if report.gave_up:
            out.print(plain(f"{report.gave_up}; {_LONGER}", "bold red"), soft_wrap=True)
        if report.noticed:
            out.print(plain(f"by experiment {report.noticed}", "bold"), soft_wrap=True)
        if report.failed:
            blamed = blame_table(report.results, read_requirements(), finished.causes)
            out.print(blamed, width=table_width(out))
        for told in _lines(finished):
            out.print(plain(told), soft_wrap=True)
    for problem in report.baseline.problems if report.baseline else ():
        out.print(plain(problem, "red"), soft_wrap=True)
    for line in summary_lines(report, profile):
        out.print(line, soft_wrap=True)


def _lines(finished: Finished) -> Iterator[str]:
    """What is printed between the tables and the summary."""
    report = finished.report
    yield from (shorten(line, MESSAGE) for line in dead_lines(report.results))
    yield from filter(None, (alike(report.results),))
    yield from (shorten(line, MESSAGE) for line in finished.diagnosis)
    yield from (*finished.outliers, *finished.notes)
    if finished.left_open:
        seen = "; every test that was run passes" if report.summary["pass"] else ""  # none has failed
        yield shorten(f"incomplete because {finished.left_open}{seen}", MESSAGE)
    yield from finished.written


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
