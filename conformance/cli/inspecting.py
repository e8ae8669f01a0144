"""The calls that show what is there: `list`, `show`, `explain`, `report`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from conformance.cli import options
from conformance.cli.exit_codes import CONFORMANT, PROGRAM, examples
from conformance.errors import UsageError
from conformance.running.suggestions import known
from conformance.telling.atomic_file import OutFile, check_apart
from conformance.telling.explain import (
    defect_explanation,
    defect_lines,
    explanation,
    explanation_lines,
    kind_of,
    subject,
    subject_lines,
)
from conformance.telling.inventory import LISTS, case_json, case_lines, list_table
from conformance.telling.merge_shards import join
from conformance.telling.report import Report, checksums, read_report
from conformance.telling.requirements import Requirement, read_requirements
from conformance.telling.table import matrix_lines, matrix_table
from conformance.telling.terminal import console, plain
from conformance.vectors import load
from conformance.vectors.case import Case

SHA256_HELP = "SHA-256 that a run printed for its report; a report with another one is refused (repeatable)."


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


@click.command(epilog=examples("show mask/empty-row-is-zero"))
@click.argument("case")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every number.")
@click.option("-v", "verbose", is_flag=True, help="Say what each tolerance is made of, under every policy.")
def show(case: str, as_json: bool, verbose: bool) -> int:
    """Show CASE in full: what it exposes, requirements, inputs, expected values and tolerance.

    CASE is the ID of a stored case, or a file that `explore --save` wrote.
    """
    if case.endswith(".json"):
        from conformance.exploring.saved import read_cases  # half of the start of the others

        return _show(read_cases(Path(case)), as_json, verbose)
    cases = {c.id: c for c in load.load_vectors().cases}
    if case not in cases and (kind := kind_of(case)) in ("requirement", "defect"):
        raise UsageError(f"{case} is a {kind}: say `{PROGRAM} explain {case}`")
    return _show(
        [cases[known("case", case.lower() if case.lower() in cases else case, cases)]], as_json, verbose
    )


def _show(found: Sequence[Case], as_json: bool, verbose: bool) -> int:
    """Each case: with JSON the last one, of which the others are what is asked before."""
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
    kind = kind_of(name)
    if kind == "case":
        raise UsageError(f"{name} is a case: say `{PROGRAM} show {name}`")
    if not kind:
        return _list_subject(name, subject(name), as_json)
    found = defect_explanation(name) if kind == "defect" else explanation(name)
    if as_json:
        print_json(found)
        return CONFORMANT
    out = console()
    for line in defect_lines(found) if kind == "defect" else explanation_lines(found):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


def _list_subject(name: str, found: Sequence[Requirement], as_json: bool) -> int:
    """The requirements of a chapter or a feature."""
    if as_json:
        print_json([explanation(requirement.id) for requirement in found])
        return CONFORMANT
    for line in subject_lines(name, list(found)):
        console().print(plain(line), soft_wrap=True)
    return CONFORMANT


@click.command(epilog=examples("report numpy.json torch.json", "report *.json --html matrix.html"))
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN.json...")
@click.option("--html", type=click.Path(path_type=Path), metavar="OUT.html", help="Write an HTML report.")
@options.card
@options.link
@click.option("--sha256", "sha256s", metavar="HEX", multiple=True, help=SHA256_HELP)
def report(
    runs: tuple[Path, ...], html: Path | None, card: Path | None, link: str, sha256s: tuple[str, ...]
) -> int:
    """Print a table of one or many reports: chapter by target, then a line for each.

    The parts of a run that --shard divided are joined.
    """
    files = _pictures(html, card, link)
    if files:
        check_apart([file for file, _ in files], (("report", path) for path in runs))
    among = checksums(sha256s) if sha256s else None
    joined = join([read_report(path, among) for path in runs])
    reports = joined.reports
    for file, make in files:
        file.write(make(reports))
    out = console()
    out.print(matrix_table(reports))
    for line in matrix_lines(reports):
        out.print(line, soft_wrap=True)
    for note in joined.notes:
        out.print(plain(note), soft_wrap=True)
    if files:
        out.print(plain(f"wrote {', '.join(str(file) for file, _ in files)}"), soft_wrap=True)
    return CONFORMANT


def _pictures(
    html: Path | None, card: Path | None, link: str
) -> list[tuple[OutFile, Callable[[Sequence[Report]], str]]]:
    """The files that a report is drawn into, each with what makes its text."""
    if html is None and card is None and not link:
        return []
    from conformance.telling.page import card as cards  # takes time to import, which other calls save
    from conformance.telling.page import render

    cards.check_card(card, link)
    made = (
        (html, "page", render),
        (card, "card", lambda reports: cards.card(reports, link)),
    )
    return [(OutFile(path, what), make) for path, what, make in made if path is not None]


def print_json(data: Any) -> None:
    """Prints JSON that every reader of JSON reads."""
    click.echo(json.dumps(data, indent=1, allow_nan=False))
