"""`mha-conformance vectors`: the vectors as data."""

import json
from pathlib import Path

import click

from conformance.cli.exit_codes import CONFORMANT, FAILED, MISUSED, PROGRAM, examples
from conformance.errors import UsageError
from conformance.judging.selftest import selftest
from conformance.telling.terminal import console, counted, plain
from conformance.telling.verification_report import table, total, verified_json
from conformance.vectors.export import export_vectors
from conformance.vectors.load import load_vectors
from conformance.vectors.verify.run import Verified, verify

SELFTEST = "selftest.json"
"""What the answers to test a judge with are called."""


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
@click.option(
    "--operands", is_flag=True, help="Write seeded operands out as tensors: another index and hash."
)
def export(directory: Path, operands: bool) -> int:
    """Write the vectors to DIR, which must be new or empty: index, tensors, JSON Schema, description, self-test."""
    exported = export_vectors(directory, operands)
    answers = selftest({case.id: case for case in load_vectors().cases})
    (directory / SELFTEST).write_text(json.dumps(answers, allow_nan=False) + "\n", "utf-8", newline="\n")
    out = console()
    size = exported.size / 2**20
    for line in (
        f"{counted(exported.cases, 'case')} in {counted(exported.files, 'file')}, {size:.1f} MiB, in {directory}",
        f"{directory / 'vectors.md'} describes them; sha256 of index.json: {exported.sha256}",
        f"{directory / SELFTEST} has {counted(len(answers['answers']), 'answer')} with verdicts, to test a judge",
        f"`{PROGRAM} show CASE` prints any of them",
    ):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


@vectors.command("verify", epilog=examples("vectors verify -k mask"))
@click.option("-k", "word", default="", help="Only cases whose ID contains this text.")
@click.option("-j", "processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify_(word: str, processes: int, as_json: bool) -> int:
    """Prove the vectors again: by the oracle, by a second reference from the text, by relations between calls.

    Exit status 1 if a number differs. Takes minutes, and needs python-flint and mpmath.
    """
    cases = [case for case in load_vectors().cases if word in case.id and not case.raises]
    if not cases:
        raise UsageError(f"no case with a result has {word!r} in its ID; see `{PROGRAM} list cases`")
    chapters: dict[str, Verified] = {}
    try:
        for chapter, found in verify(cases, processes):
            chapters.setdefault(chapter, Verified()).add(found)
            if not as_json:
                for difference in found.differences:
                    console().print(plain(f"DIFFERS {difference}"), soft_wrap=True)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"no module named {error.name!r}: the proof needs `pip install python-flint mpmath`"
        ) from error
    if as_json:
        click.echo(json.dumps(verified_json(chapters), indent=1))
    else:
        console().print(table(chapters))
        console().print(plain(total(chapters)), soft_wrap=True)
    return FAILED if any(found.differences for found in chapters.values()) else CONFORMANT
