"""`mha-conformance compare`."""

from pathlib import Path

import click

from conformance.cli.exit_codes import CONFORMANT, FAILED, examples
from conformance.cli.inspecting import print_json
from conformance.cli.reporting import SHA256_HELP
from conformance.errors import UsageError
from conformance.telling.compare import compare as compared
from conformance.telling.github import comparison_markdown
from conformance.telling.report import checksums, read_report
from conformance.telling.table import comparison_lines
from conformance.telling.terminal import console


@click.command(epilog=examples("compare before.json after.json"))
@click.argument("before", type=click.Path(path_type=Path), metavar="A.json")
@click.argument("after", type=click.Path(path_type=Path), metavar="B.json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment or a step summary.")
@click.option("--sha256", "sha256s", metavar="HEX", multiple=True, help=SHA256_HELP)
def compare(before: Path, after: Path, as_json: bool, markdown: bool, sha256s: tuple[str, ...]) -> int:
    """Show what changed from report A to report B; exit status 1 if a test regressed."""
    if as_json and markdown:
        raise UsageError("give either --json or --markdown")
    among = checksums(sha256s) if sha256s else None
    comparison = compared(read_report(before, among), read_report(after, among))
    if as_json:
        print_json(comparison.to_json())
    elif markdown:
        click.echo(comparison_markdown(comparison), nl=False)
    else:
        out = console()
        for line in comparison_lines(comparison):
            out.print(line, soft_wrap=True)
    return FAILED if comparison.regressions else CONFORMANT
