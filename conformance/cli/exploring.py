"""`mha-conformance explore`."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from conformance.api.explore import Exploration
from conformance.api.large import left_out
from conformance.api.wanted import FAILURES, SECONDS, Outputs, Wanted, drawn_seed
from conformance.cli import options
from conformance.cli.exit_codes import CONFORMANT, FAILED, PROGRAM, examples
from conformance.cli.explored import Progress, closing_lines, found_lines, last_line
from conformance.cli.interrupts import interrupted, interruptible
from conformance.errors import UsageError
from conformance.exploring.large.search import LargeFound, LargeTally
from conformance.exploring.search import Event, Found, Judged
from conformance.exploring.sizes import SIZES
from conformance.running.baseline import read_baseline
from conformance.telling.terminal import MESSAGE, console, plain, shorten


@click.command(
    epilog=examples(
        "explore my_attention.py:attention",
        "explore my_attention.py:attention --seconds 20 --dtype float32 --save failures",
        "explore --command 'node impl.js' --seed 7 --cases 500",
        "explore my_attention.py:attention --size large --memory 8",
    )
)
@options.target
@options.command
@click.option(
    "--seconds", type=float, default=SECONDS, show_default=True, metavar="S", help="Time for drawing calls."
)
@click.option(
    "--cases",
    type=int,
    metavar="N",
    help="Number of calls to draw; without --seconds there is no time limit.",
)
@click.option("--seed", metavar="N", help="Seed of the draw; a new one by default, which is printed.")
@click.option(
    "--size", default="kernel", show_default=True, metavar="|".join(SIZES),
    help="With small up to 130 keys; with kernel up to 8,192, widths to 576 and 65,537 batch entries; "
    "with large production sizes, whose answers are known in closed form.",
)  # fmt: skip
@click.option(
    "--memory",
    type=float,
    metavar="GIB",
    help="Memory that a call of --size large may take; by default a quarter of what is free on the device.",
)
@click.option(
    "--max-failures", type=int, default=FAILURES, show_default=True, metavar="N",
    help="Stop after this number of distinct failures.",
)  # fmt: skip
@options.stop
@click.option(
    "--save",
    type=options.FILE,
    metavar="DIR",
    help="Write each reduced call to a file of its own, with a program that shows it.",
)
@click.option("--replay", metavar="TOKEN", help="Repeat the call of a token, and draw nothing.")
@options.op
@options.dtype
@options.feature("calls")
@options.accuracy
@options.device
@options.timeout("Time limit per call.")
@options.baseline("Known failures: tokens, each with its reason.")
@options.report
@options.junit
@options.html
@options.no_diagnose
@options.quiet
@options.verbose("Print every call, and a program for each failure.")
@click.pass_obj
def explore(
    given: list[str],
    /,
    seed: str | None,
    no_diagnose: bool,
    baseline: Path | None,
    quiet: bool,
    verbose: bool,
    **given_options: Any,
) -> int:
    """Draw fresh calls of what TARGET claims, and reduce and explain what fails.

    Each call is judged by an expected value that is computed and certified on the spot. TARGET is as of `run`.
    Exit status: 0 if nothing failed, 1 if something did, 2 if the call is wrong or nothing was executed.
    """
    outputs = Outputs(**{name: given_options.pop(name) for name in ("report", "junit", "html")})
    request = options.request_of(given_options)
    if baseline is not None:
        request = replace(request, baseline=read_baseline(baseline))
    wanted = Wanted(
        seed=drawn_seed(seed), stop=request.stop_at_failure, diagnose=not no_diagnose, **given_options
    )
    with interruptible():
        try:
            exploration = Exploration(request, wanted, outputs, (PROGRAM, *given))
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
            for event in exploration.events(progress.echo if verbose else None, progress.begin):
                progress.show(event)
                if isinstance(event, Found | LargeFound) and not quiet:
                    progress.pause()
                    _print(out, found_lines(event, exploration.snippet(event) if verbose else ""))
    finally:
        written = exploration.write()
        if exploration.started:
            if written and not quiet:
                _print(out, [f"wrote {', '.join(written)}"])
            if isinstance(exploration.tally, LargeTally):
                _print(out, [] if quiet else left_out(exploration.tally, exploration.memory))
            elif not quiet:
                _print(out, closing_lines(exploration))
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
