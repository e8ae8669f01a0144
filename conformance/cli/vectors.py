"""`mha-conformance vectors`: the vectors as data."""

from pathlib import Path

import click

from conformance.cli.exits import CONFORMANT, MISUSED, PROGRAM, examples
from conformance.telling.text import console, counted, plain
from conformance.vectors.export import export_vectors


@click.group(invoke_without_command=True, epilog=examples("vectors export vectors/"))
@click.pass_context
def vectors(context: click.Context) -> int:
    """The vectors as data, for readers in other languages."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return MISUSED
    return CONFORMANT


@vectors.command(epilog=examples("vectors export vectors/"))
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
def export(directory: Path) -> int:
    """Write the vectors to DIR, which must be new or empty: index, tensors, JSON Schema and their description."""
    exported = export_vectors(directory)
    out = console()
    size = exported.size / 2**20
    for line in (
        f"{counted(exported.cases, 'case')} in {counted(exported.files, 'file')}, {size:.1f} MiB, in {directory}",
        f"{directory / 'vectors.md'} describes them; sha256 of index.json: {exported.sha256}",
        f"`{PROGRAM} show CASE` prints any of them",
    ):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT
