"""The command `mha-conformance`: options in, exit status out; everything else is done elsewhere."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from conformance.errors import UsageError
from conformance.running import runner
from conformance.running.nearest import known
from conformance.running.process import split_command
from conformance.running.runner import Request
from conformance.running.select import Selection, parse_shard
from conformance.telling.listing import LISTS, case_json, case_lines, list_table
from conformance.telling.progress import RunProgress
from conformance.telling.report import Report, read_report
from conformance.telling.requirements import read_requirements
from conformance.telling.run import prepare
from conformance.telling.table import matrix_table, run_table, summary_lines
from conformance.telling.text import console, plain, safe
from conformance.vectors import load
from conformance.version import SPEC_VERSION, SUITE_VERSION, VECTORS_VERSION

PROGRAM = "mha-conformance"
CONFORMANT, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = cli.main(args=given, prog_name=PROGRAM, standalone_mode=False, obj=given)
        sys.stdout.flush()
        return status or CONFORMANT
    except UsageError as error:
        return _misused(str(error))
    except click.ClickException as error:
        return _misused(f"{error.format_message()} See `{PROGRAM} --help`.")
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _misused(message: str) -> int:
    print(f"{PROGRAM}: {safe(message)}", file=sys.stderr)
    return MISUSED


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    SUITE_VERSION, message=f"%(prog)s %(version)s (spec {SPEC_VERSION}, vectors {VECTORS_VERSION})"
)
@click.pass_context
def cli(context: click.Context) -> int:
    r"""Test an implementation of multi-head attention, in any framework and any language.

    \b
    Example: mha-conformance run path/to/attention.py:attention
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return MISUSED
    return CONFORMANT


@cli.command()
@click.argument("target", required=False)
@click.option(
    "--command", metavar="PROGRAM", help="A program that speaks the line protocol, instead of TARGET."
)
@click.option("--profile", metavar="NAME", help="Run a profile; it must be claimed in full and pass.")
@click.option("--op", metavar="NAME", help="One operation; also what a function with another name is.")
@click.option("--dtype", "dtypes", metavar="D", multiple=True, help="A dtype; may be given again.")
@click.option("--device", metavar="DEV", help="Where the target's arrays are made.")
@click.option("--accuracy", metavar="POLICY", help="What may be rounded, instead of what the target says.")
@click.option(
    "-k", "expression", metavar="EXPR", help="Cases by ID, dtype or requirement: 'mask and not float16'."
)
@click.option(
    "--feature", "features", metavar="F", multiple=True, help="Cases that need it; may be given again."
)
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="OUT.json", help="Where to write the report."
)
@click.option(
    "--timeout", type=float, default=runner.TIMEOUT, show_default=True, metavar="SECONDS", help="Of a case."
)
@click.option("--shard", metavar="I/N", help="The I-th of N parts of the run, the same on every machine.")
@click.option("--in-process", is_flag=True, help="No isolation: faster, for debugging.")
@click.option("-x", "stop", is_flag=True, help="Stop at the first failure.")
@click.option("-q", "quiet", is_flag=True, help="Print the last line only.")
@click.option("-v", "verbose", is_flag=True, help="Print every case, and what the target writes to stderr.")
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
    report: Path | None,
    timeout: float,
    shard: str | None,
    in_process: bool,
    stop: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    r"""Run every case that TARGET claims.

    TARGET is a backend's name, package.module:attribute or path/to/file.py:attribute.

    \b
    Examples:
      mha-conformance run numpy --report numpy.json
      mha-conformance run my_attention.py:attention --dtype float32 -k 'mask or window'
      mha-conformance run --command "node impl.js" --profile core
    """
    request = Request(
        target=target,
        command=split_command(command),
        selection=Selection(
            profile=profile,
            operation=op,
            dtypes=dtypes,
            expression=expression,
            features=features,
            shard=parse_shard(shard) if shard is not None else None,
        ),
        device=device,
        accuracy=accuracy,
        timeout=timeout,
        in_process=in_process,
        stop_at_failure=stop,
    )
    recorder, cases = prepare(request, (PROGRAM, *given), report)
    progress = RunProgress(console(stderr=True), quiet, verbose)
    interrupted = False
    try:
        with progress:
            for event in runner.run(request, cases, progress.echo if verbose else None):
                recorder.add(event)
                progress.show(event)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        try:
            recorder.write()
        finally:
            if recorder.started:
                _print_run(recorder.report(), profile, quiet)
    if interrupted:
        return INTERRUPTED
    return exit_status(recorder.report(), profile)


def _print_run(report: Report, profile: str | None, quiet: bool) -> None:
    out = console()
    if not quiet:
        out.print(run_table(report))
    for line in summary_lines(report, profile):
        out.print(line)


def exit_status(report: Report, profile: str | None) -> int:
    """The exit status of a finished run.

    Raises:
        UsageError: nothing was executed, which shows nothing.
    """
    if not report.executed:
        raise UsageError(
            f"nothing was executed: {report.target.source} supports none of {len(report.results)} cases; "
            f"{report.results[0].case}: {report.results[0].message}"
        )
    met = profile is None or report.profiles[profile] == "conformant"
    return FAILED if report.failed or not met else CONFORMANT


@cli.command("list")
@click.argument("what", metavar="|".join(LISTS))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(what: str, as_json: bool) -> int:
    r"""List what the suite holds.

    \b
    Example: mha-conformance list requirements --json
    """
    entries, fields = LISTS[known("list", what, LISTS)]
    if as_json:
        _print_json(entries())
    else:
        console().print(list_table(entries(), fields))
    return CONFORMANT


@cli.command()
@click.argument("case")
@click.option("--json", "as_json", is_flag=True, help="For machines, with every number.")
def show(case: str, as_json: bool) -> int:
    r"""Show CASE in full: what it exposes, requirements, inputs, expected values and tolerance.

    \b
    Example: mha-conformance show mask/empty-row-is-zero
    """
    cases = {c.id: c for c in load.load_vectors().cases}
    found = cases[known("case", case, cases)]
    if as_json:
        _print_json(case_json(found))
        return CONFORMANT
    out = console()
    for line in case_lines(found, {r.id: r.title for r in read_requirements()}):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN.json...")
def report(runs: tuple[Path, ...]) -> int:
    r"""Print a table of one or many reports: target by chapter.

    \b
    Example: mha-conformance report numpy.json torch.json
    """
    console().print(matrix_table([read_report(path) for path in runs]))
    return CONFORMANT


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=1, allow_nan=False))
