"""`python -m conformance.defects`: every planted defect against the vectors."""

import json
import sys

import click

from conformance.defects.bank import BANK, DEFECTS
from conformance.defects.judges.broken import caught
from conformance.defects.kill import ENOUGH, Kill, matrix
from conformance.names import DTYPES

KIND = {defect.id: kind for kind, defects in BANK.items() for defect in defects}


@click.command()
@click.option("-k", "word", default="", help="Only defects with this in their ID or kind.")
@click.option("--policy", type=click.Choice(["fused", "eager"]), default="fused", show_default=True)
@click.option("--all", "every", is_flag=True, help=f"Run every case, not only until {ENOUGH} show a defect.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.option("-q", "quiet", is_flag=True, help="Problems and totals only.")
def main(word: str, policy: str, every: bool, as_json: bool, quiet: bool) -> None:
    """Runs planted defects; exit 1 if one is not shown where it must be, or shown where it cannot be.

    Example: python -m conformance.defects -k softcap --all
    """
    chosen = [defect for defect in DEFECTS if word in defect.id or word == KIND[defect.id]]
    if not chosen:
        raise click.UsageError(f"no defect has {word!r} in its ID or kind")
    kills = []
    for kill in matrix(chosen, policy, None if every else ENOUGH):
        kills.append(kill)
        if not as_json and not quiet:
            click.echo(line(kill))
    click.echo(json.dumps([record(kill) for kill in kills], indent=1) if as_json else totals(kills))
    problems = [problem for kill in kills for problem in kill.problems]
    if not word:
        shown = dict(caught())
        problems += [
            f"no answer of the table shows that in a judge {name}" for name in shown if not shown[name]
        ]
        if not as_json:
            click.echo(
                f"{len(shown)} defects of the judge: {sum(map(bool, shown.values()))} of {len(shown)} shown"
            )
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


def line(kill: Kill) -> str:
    """One row: kills at each dtype, - where none is needed, and the first case."""
    cells = [
        f"{len(cases) if cases else '-' if kill.defect.excuse(dtype, kill.policy) else 'SURVIVES':>8}"
        for dtype, cases in kill.cases.items()
    ]
    first = next((cases[0] for cases in kill.cases.values() if cases), kill.defect.equivalent or "")
    return f"{KIND[kill.defect.id]:12} {kill.defect.id:40}{''.join(cells)}  {first}"


def record(kill: Kill) -> dict[str, object]:
    """One row for machines."""
    return {
        "id": kill.defect.id,
        "kind": KIND[kill.defect.id],
        "sentence": kill.defect.sentence,
        "violates": kill.defect.violates,
        "origin": kill.defect.origin,
        "policy": kill.policy,
        "killed_by": kill.cases,
        "excused": {d: why for d in kill.cases if (why := kill.defect.excuse(d, kill.policy))},
        "problems": kill.problems,
    }


def totals(kills: list[Kill]) -> str:
    """How many are shown at each dtype, of how many that must be."""
    rows = []
    for dtype in DTYPES:
        must = [kill for kill in kills if not kill.defect.excuse(dtype, kill.policy)]
        rows.append(f"{dtype}: {sum(bool(kill.cases[dtype]) for kill in must)} of {len(must)} shown")
    return f"{len(kills)} defects; " + ", ".join(rows)


if __name__ == "__main__":
    main()
