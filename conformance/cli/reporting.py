"""The call that shows what was found: `report`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from conformance.cli import options
from conformance.cli.exit_codes import CONFORMANT, examples
from conformance.telling.atomic_file import OutFile, check_apart
from conformance.telling.merge_shards import join
from conformance.telling.report import Report, checksums, read_report
from conformance.telling.table import matrix_lines, matrix_table
from conformance.telling.terminal import console, plain

SHA256_HELP = "SHA-256 that a run printed for its report; a report with another one is refused (repeatable)."


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
