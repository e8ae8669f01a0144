"""`mha-conformance diagnose`."""

from pathlib import Path
from typing import Any

import click

from conformance.api.run import Files, prepare
from conformance.cli.exit_codes import CONFORMANT, FAILED, PROGRAM, examples
from conformance.cli.inspecting import print_json
from conformance.cli.interrupts import interruptible
from conformance.cli.options import REQUEST, request_of
from conformance.cli.running import exit_status, run
from conformance.running import runner
from conformance.telling.progress import RunProgress
from conformance.telling.terminal import MESSAGE, console, counted, plain, shorten

SHARED = [p for p in run.params if p.name in {*REQUEST, "verbose", "cases"} - {"x"}]
"""What `run` takes as well, but for its outputs and for stopping early."""


@click.command(
    params=SHARED,
    epilog=examples(
        "diagnose my_attention.py:attention", "diagnose --command 'node impl.js' --dtype float32 --json"
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def diagnose(
    given: list[str], /, as_json: bool, verbose: bool, cases: tuple[Path, ...], **options: Any
) -> int:
    """Name the known mistakes that explain the failures of TARGET.

    Runs every case that TARGET supports. Exit status: 0 if nothing failed, 1 if anything failed, 2 if the
    call is wrong or nothing was executed.
    """
    from conformance.telling.diagnosis import diagnosis_json, diagnosis_lines  # which takes long to import

    request = request_of(options)
    with interruptible():
        request, recorder, asked = prepare(request, (PROGRAM, *given), Files(cases=cases), "off")
        progress = RunProgress(console(stderr=True), False, verbose, report=False)
        with progress:
            for event in runner.run(request, asked, progress.echo if verbose else None, progress.asking):
                recorder.add(event)
                progress.show(event)
        report = recorder.report()
        exit_status(report, None)  # raises where nothing was executed
        found = recorder.diagnose()
    if as_json:
        print_json({"target": report.target.source, **diagnosis_json(found)})
        return FAILED if report.failed else CONFORMANT
    out = console()
    if report.gave_up:
        out.print(plain(report.gave_up), soft_wrap=True)
    for line in diagnosis_lines(found, recorder.compared) or [
        f"nothing failed: {counted(report.summary['pass'], 'test')} pass"
    ]:
        out.print(plain(shorten(line, MESSAGE)), soft_wrap=True)
    return FAILED if report.failed else CONFORMANT
