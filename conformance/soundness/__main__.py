"""`python -m conformance.soundness`: correct implementations on new random cases; no rule may refuse one."""

import importlib.util
import json
import random
import sys
import time
from dataclasses import asdict

import click

from conformance.errors import UsageError
from conformance.running.locating import implementations
from conformance.running.suggestions import known
from conformance.soundness.parallel import SLOW, trial
from conformance.soundness.report import lines, record
from conformance.soundness.unobservable import lines as rows
from conformance.soundness.unobservable import unobservable

FRAMEWORKS = (
    "numpy",
    "array-api-strict",
    "torch",
    "torch-sdpa-math",
    "torch-sdpa-flash",
    "jax",
    "jax-jit",
)
"""Targets that are taken to be right wherever they claim a case."""
FEWEST, CASES = 4, 90
QUICK_SEED, QUICK_CASES = 20261128, 30
"""Short enough for every change."""


@click.command()
@click.option("--seed", type=click.IntRange(0), help="Of the cases; a new one if it is left out.")
@click.option("--cases", "count", type=click.IntRange(FEWEST), help=f"By default {CASES}.")
@click.option(
    "--quick",
    is_flag=True,
    help=f"By default {QUICK_CASES} cases of one seed, and no framework that compiles: about a minute.",
)
@click.option(
    "--framework", "names", multiple=True, help="Only this target beside the styles; may be repeated."
)
@click.option("--styles-only", is_flag=True, help="No framework at all.")
@click.option(
    "--unobservable",
    "wanted",
    type=click.IntRange(1),
    help="Instead: so many new cases for each defect that the bank says nothing can show.",
)
@click.option("-j", "processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def main(
    seed: int | None,
    count: int | None,
    quick: bool,
    names: tuple[str, ...],
    styles_only: bool,
    wanted: int | None,
    processes: int,
    as_json: bool,
) -> None:
    """Runs correct implementations on new random cases; exit 1 if a rule refuses one of them.

    Example: python -m conformance.soundness --seed 7 --cases 200
    """
    if importlib.util.find_spec("flint") is None:
        raise click.UsageError("no module named 'flint': the oracle needs `pip install python-flint`")
    targets = implementations()
    try:
        for name in names:
            known("backend", name, targets)
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    present = tuple(name for name in FRAMEWORKS if name in targets and not (quick and name in SLOW))
    chosen = () if styles_only else names or present
    count = count or (QUICK_CASES if quick else CASES)
    if seed is None:
        seed = QUICK_SEED if quick else random.SystemRandom().randrange(10**6)
    start = time.monotonic()
    if wanted:
        found = unobservable(seed, wanted, processes)
        seconds = time.monotonic() - start
        told = (
            [json.dumps([asdict(each) for each in found], indent=1)]
            if as_json
            else rows(found, seed, seconds)
        )
        for line in told:
            click.echo(line)
        sys.exit(1 if any(each.alarms for each in found) else 0)
    outcome = trial(seed, count, chosen, processes)
    seconds = time.monotonic() - start
    if as_json:
        click.echo(json.dumps(record(outcome, seed, count, seconds), indent=1))
    else:
        for line in lines(outcome, seed, count, seconds):
            click.echo(line)
    sys.exit(1 if outcome.alarms else 0)


if __name__ == "__main__":
    main()
