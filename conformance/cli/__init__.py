"""The command `mha-conformance`: options in, exit status out; everything else is done elsewhere."""

import os
import sys
from collections.abc import Sequence

import click

from conformance.cli.exits import CONFORMANT, FAILED, INTERRUPTED, MISUSED, PROGRAM
from conformance.cli.looking import explain, list_, report, show
from conformance.cli.running import run
from conformance.cli.tracing import trace
from conformance.errors import UsageError
from conformance.telling.text import safe
from conformance.version import SPEC_VERSION, SUITE_VERSION, VECTORS_VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = cli.main(args=given, prog_name=PROGRAM, standalone_mode=False, obj=given)
        sys.stdout.flush()
        return status or CONFORMANT
    except UsageError as error:
        return _misused(str(error))
    except click.ClickException as error:
        return _misused(f"{error.format_message()} See `{PROGRAM} --help`.")
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _misused(message: str) -> int:
    print(f"{PROGRAM}: {safe(message)}", file=sys.stderr)
    return MISUSED


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    SUITE_VERSION, message=f"%(prog)s %(version)s (spec {SPEC_VERSION}, vectors {VECTORS_VERSION})"
)
@click.pass_context
def cli(context: click.Context) -> int:
    r"""Test an implementation of multi-head attention, in any framework and any language.

    \b
    Example: mha-conformance run path/to/attention.py:attention
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return MISUSED
    return CONFORMANT


for command in (run, list_, show, explain, report, trace):
    cli.add_command(command)
