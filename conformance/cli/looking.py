"""The calls that show what is there: `list`, `show`, `explain`, `report`."""

import json
from pathlib import Path
from typing import Any

import click

from conformance.cli.exits import CONFORMANT
from conformance.running.nearest import known
from conformance.telling.explain import explanation, explanation_lines
from conformance.telling.listing import LISTS, case_json, case_lines, list_table
from conformance.telling.report import read_report
from conformance.telling.requirements import read_requirements
from conformance.telling.table import matrix_table
from conformance.telling.text import console, plain
from conformance.vectors import load


@click.command("list")
@click.argument("what", metavar="|".join(LISTS))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(what: str, as_json: bool) -> int:
    r"""List what the suite holds.

    \b
    Example: mha-conformance list requirements --json
    """
    entries, fields = LISTS[known("list", what, LISTS)]
    if as_json:
        print_json(entries())
    else:
        console().print(list_table(entries(), fields))
    return CONFORMANT


@click.command()
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
        print_json(case_json(found))
        return CONFORMANT
    out = console()
    for line in case_lines(found, {r.id: r.title for r in read_requirements()}):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


@click.command()
@click.argument("requirement")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def explain(requirement: str, as_json: bool) -> int:
    r"""Explain REQUIREMENT: its text, rationale and decision, its cases and the mistakes that break it.

    \b
    Example: mha-conformance explain MASK-3
    """
    found = explanation(requirement)
    if as_json:
        print_json(found)
        return CONFORMANT
    out = console()
    for line in explanation_lines(found):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN.json...")
def report(runs: tuple[Path, ...]) -> int:
    r"""Print a table of one or many reports: chapter by target.

    \b
    Example: mha-conformance report numpy.json torch.json
    """
    console().print(matrix_table([read_report(path) for path in runs]))
    return CONFORMANT


def print_json(data: Any) -> None:
    """Prints JSON that every reader of JSON reads."""
    click.echo(json.dumps(data, indent=1, allow_nan=False))
