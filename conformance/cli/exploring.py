"""`mha-conformance explore`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click

from conformance.cli.exits import CONFORMANT, FAILED, PROGRAM, examples
from conformance.cli.interrupts import interrupted, interruptible
from conformance.cli.running import FILE, request_of
from conformance.errors import UsageError
from conformance.exploring.search import Event, Found, Judged
from conformance.exploring.sizes import SIZES
from conformance.running import runner
from conformance.running.baseline import read_baseline
from conformance.telling.exploration import FAILURES, SECONDS, Exploration, Outputs, Wanted, drawn_seed
from conformance.telling.explored import Progress, found_lines, last_line
from conformance.telling.text import MESSAGE, console, plain, shorten


@click.command(
    epilog=examples(
        "explore my_attention.py:attention",
        "explore my_attention.py:attention --seconds 20 --dtype float32 --save failures",
        "explore --command 'node impl.js' --seed 7 --cases 500",
    )
)
@click.argument("target", required=False)
@click.option(
    "--command", metavar="PROGRAM", help="A program that speaks the line protocol, instead of TARGET."
)
@click.option(
    "--seconds", type=float, default=SECONDS, show_default=True, metavar="S", help="How long to draw."
)
@click.option("--cases", type=int, metavar="N", help="How many calls to draw; alone it is the whole budget.")
@click.option("--seed", metavar="N", help="The draw; by default a new one, which is printed.")
@click.option(
    "--size", default="kernel", show_default=True, metavar="|".join(SIZES),
    help="Up to 130 keys; up to 8,192 with widths to 576 and 65,537 batch entries.",
)  # fmt: skip
@click.option("--memory", type=float, metavar="GIB", help="What --size large may take.")
@click.option(
    "--max-failures", "failures", type=int, default=FAILURES, show_default=True, metavar="N",
    help="Stop after so many distinct failures.",
)  # fmt: skip
@click.option("-x", "stop", is_flag=True, help="Stop at the first failure.")
@click.option(
    "--save", type=FILE, metavar="DIR", help="Where to write each reduced call as a file of its own."
)
@click.option("--replay", metavar="TOKEN", help="Ask the call of a token once more, and draw nothing.")
@click.option("--op", metavar="NAME", help="One operation; also what a function with another name is.")
@click.option("--dtype", "dtypes", metavar="D", multiple=True, help="A dtype; may be given again.")
@click.option(
    "--feature", "features", metavar="F", multiple=True, help="Calls that need it; may be given again."
)
@click.option("--accuracy", metavar="POLICY", help="What may be rounded, instead of what the target says.")
@click.option("--device", metavar="DEV", help="Where the target's arrays are made.")
@click.option(
    "--timeout", type=float, default=runner.TIMEOUT, show_default=True, metavar="SECONDS", help="Of a call."
)
@click.option(
    "--baseline", type=FILE, metavar="KNOWN.toml", help="Failures that are known: tokens, with their reasons."
)
@click.option("--report", type=FILE, metavar="OUT.json", help="Where to write the report, as it goes.")
@click.option("--junit", type=FILE, metavar="OUT.xml", help="Where to write JUnit XML.")
@click.option("--html", type=FILE, metavar="OUT.html", help="Where to write a page.")
@click.option("--no-diagnose", is_flag=True, help="Do not look for known mistakes that explain what fails.")
@click.option("-q", "quiet", is_flag=True, help="Print the last line only.")
@click.option("-v", "verbose", is_flag=True, help="Print every call, and a program for each failure.")
@click.pass_obj
def explore(
    given: list[str],
    target: str | None,
    command: str | None,
    seconds: float,
    cases: int | None,
    seed: str | None,
    size: str,
    memory: float | None,
    failures: int,
    stop: bool,
    save: Path | None,
    replay: str | None,
    op: str | None,
    dtypes: tuple[str, ...],
    features: tuple[str, ...],
    accuracy: str | None,
    device: str | None,
    timeout: float,
    baseline: Path | None,
    report: Path | None,
    junit: Path | None,
    html: Path | None,
    no_diagnose: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Draw fresh calls of what TARGET claims, and reduce and explain what fails.

    Each call is judged by an expected value that is computed and certified on the spot. TARGET is as of `run`.
    Exit status: 0 if nothing failed, 1 if something did, 2 if the call is wrong or nothing was executed.
    """
    request = request_of(
        target, command, None, op, dtypes, device, accuracy, None, features, timeout, 1, None, False, stop
    )
    if baseline is not None:
        request = replace(request, baseline=read_baseline(baseline))
    wanted = Wanted(
        seconds, cases, drawn_seed(seed), size, memory, failures, stop, save, replay, not no_diagnose
    )
    with interruptible():
        try:
            exploration = Exploration(request, wanted, Outputs(report, junit, html), (PROGRAM, *given))
            return _explored(exploration, quiet, verbose)
        except (OSError, SystemExit) as error:
            if interrupted(error):
                raise KeyboardInterrupt from error
            raise


def _explored(exploration: Exploration, quiet: bool, verbose: bool) -> int:
    progress = Progress(console(stderr=True), exploration, quiet, verbose)
    out = console()
    try:
        with progress:
            for event in exploration.events(progress.echo if verbose else None):
                progress.show(event)
                if isinstance(event, Found) and not quiet:
                    progress.pause()
                    _print(out, found_lines(event, exploration.snippet(event) if verbose else ""))
    finally:
        written = exploration.write()
        if exploration.started:
            if written and not quiet:
                _print(out, [f"wrote {', '.join(written)}"])
            _print(out, [last_line(exploration)])
    report = exploration.report()
    if not report.executed:
        raise UsageError(
            f"nothing was executed: of {exploration.tally.drawn} drawn calls {report.target.source} answered none"
        )
    for problem in report.baseline.problems if report.baseline else ():
        _print(out, [problem])
    return CONFORMANT if report.as_expected else FAILED


def _print(out: object, lines: Iterable[str]) -> None:
    for line in lines:
        out.print(plain(shorten(line, MESSAGE)), soft_wrap=True)  # type: ignore[attr-defined]


__all__ = ["Event", "Judged", "explore"]
