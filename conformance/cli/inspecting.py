"""The calls that show what is there: `list`, `show`, `explain`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.cli import options
from conformance.cli.exit_codes import CONFORMANT, PROGRAM, examples
from conformance.errors import UsageError
from conformance.running.suggestions import known
from conformance.telling.inventory import LISTS, list_table, read_cases
from conformance.telling.requirements import Requirement, read_requirements
from conformance.telling.terminal import console, plain

if TYPE_CHECKING:
    from conformance.vectors.case import Case

SAVED = ".json"
"""What the name of a saved case ends in."""


@click.command("list", epilog=examples("list requirements --json"))
@click.argument("what", metavar="|".join(LISTS))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(what: str, as_json: bool) -> int:
    """List what the suite holds."""
    entries, fields = LISTS[known("list", what, LISTS)]
    if as_json:
        print_json(entries())
    else:
        console().print(list_table(entries(), fields))
    return CONFORMANT


@click.command(epilog=examples("show mask/empty-row-is-zero", "show mask/empty-row-is-zero --save case.json"))
@click.argument("case")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every number.")
@click.option("-v", "verbose", is_flag=True, help="Say what each tolerance is made of, under every policy.")
@click.option(
    "--save",
    type=options.FILE,
    metavar="FILE.json",
    help="Also write the case to a new file, which `run TARGET --case FILE.json` takes.",
)
def show(case: str, as_json: bool, verbose: bool, save: Path | None) -> int:
    """Show CASE in full: what it exposes, requirements, inputs, expected values and tolerance.

    CASE is the ID of a stored case, or a file that `explore --save` or `show --save` wrote.
    """
    if save is not None and save.suffix != SAVED:
        raise UsageError(f"--save {str(save)!r} must end in {SAVED}, as in case{SAVED}")
    if case.endswith(SAVED):
        if save is not None:
            raise UsageError(f"--save wants the ID of a stored case; {case} is a file already")
        from conformance.exploring.saved import read_cases as read_saved  # half of the start of the others

        return _show(read_saved(Path(case)), as_json, verbose)
    from conformance.telling.explain import kind_of

    cases = {c.id: c for c in read_cases()}
    if case not in cases and (kind := kind_of(case)) in ("requirement", "defect"):
        raise UsageError(f"{case} is a {kind}: say `{PROGRAM} explain {case}`")
    found = cases[known("case", case.lower() if case.lower() in cases else case, cases)]
    if save is None:
        return _show([found], as_json, verbose)
    from conformance.exploring.stored import save_stored

    dtype = save_stored(found, save)
    status = _show([found], as_json, verbose)
    if not as_json:
        run = f"{PROGRAM} run TARGET --case {shlex.quote(str(save))}"
        for line in ("", f"{save} holds it in {dtype}; `{run}` runs it"):
            console().print(plain(line), soft_wrap=True)
    return status


def _show(found: "Sequence[Case]", as_json: bool, verbose: bool) -> int:
    """Each case: with JSON the last one, of which the others are what is asked before."""
    from conformance.telling.showing import case_json, case_lines

    if as_json:
        print_json(case_json(found[-1]))
        return CONFORMANT
    out = console()
    for each in found:
        for line in case_lines(each, {r.id: r.title for r in read_requirements()}, verbose):
            out.print(plain(line), soft_wrap=True)
    return CONFORMANT


@click.command(epilog=examples("explain MASK-3", "explain mask-inverted"))
@click.argument("name", metavar="REQUIREMENT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(name: str, as_json: bool) -> int:
    """Explain REQUIREMENT: its text, rationale and decision, its cases and the mistakes that break it.

    Also takes the ID of a known mistake; of a chapter or a feature it lists the requirements.
    """
    from conformance.telling import explain as telling

    kind = telling.kind_of(name)
    if kind == "case":
        raise UsageError(f"{name} is a case: say `{PROGRAM} show {name}`")
    if not kind:
        return _list_subject(name, telling.subject(name), as_json)
    found = telling.defect_explanation(name) if kind == "defect" else telling.explanation(name)
    if as_json:
        print_json(found)
        return CONFORMANT
    out = console()
    for line in telling.defect_lines(found) if kind == "defect" else telling.explanation_lines(found):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


def _list_subject(name: str, found: Sequence[Requirement], as_json: bool) -> int:
    """The requirements of a chapter or a feature."""
    from conformance.telling import explain as telling

    if as_json:
        print_json([telling.explanation(requirement.id) for requirement in found])
        return CONFORMANT
    for line in telling.subject_lines(name, list(found)):
        console().print(plain(line), soft_wrap=True)
    return CONFORMANT


def print_json(data: Any) -> None:
    """Prints JSON that every reader of JSON reads."""
    click.echo(json.dumps(data, indent=1, allow_nan=False))
