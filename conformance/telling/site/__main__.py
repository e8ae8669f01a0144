"""Writes the source of the public site: python -m conformance.telling.site REPORT... --out FOLDER."""

from pathlib import Path

import click

from conformance.errors import UsageError
from conformance.resources import spec_directory
from conformance.telling.report import read_report
from conformance.telling.site.writing import write
from conformance.vectors.load import load_vectors


@click.command()
@click.argument("reports", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the source of the site."
)
@click.option("--address", default="", help="Where the site will stand.")
@click.option("--repository", default="", help="Address of the source.")
def main(reports: tuple[Path, ...], out: Path, address: str, repository: str) -> None:
    """Write the Markdown, the data and the configuration that MkDocs makes the site of."""
    try:
        cases = load_vectors().cases
        write([read_report(path) for path in reports], cases, spec_directory(), out, address, repository)
    except UsageError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()
