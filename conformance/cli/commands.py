"""The calls of the command, put together."""

import click

from conformance.cli.benching import bench
from conformance.cli.chaining import chain
from conformance.cli.comparing import compare
from conformance.cli.diagnosing import diagnose
from conformance.cli.exits import CONFORMANT, MISUSED, examples
from conformance.cli.exploring import explore
from conformance.cli.judging import judge
from conformance.cli.looking import explain, list_, report, show
from conformance.cli.running import run
from conformance.cli.starting import init
from conformance.cli.tracing import trace
from conformance.cli.vectors import vectors
from conformance.version import SPEC_VERSION, SUITE_VERSION, VECTORS_VERSION


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("run path/to/attention.py:attention"),
)
@click.version_option(
    SUITE_VERSION, message=f"%(prog)s %(version)s (spec {SPEC_VERSION}, vectors {VECTORS_VERSION})"
)
@click.pass_context
def cli(context: click.Context) -> int:
    """Test an implementation of multi-head attention, in any framework and any language."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return MISUSED
    return CONFORMANT


for command in (
    run,
    explore,
    judge,
    diagnose,
    init,
    list_,
    show,
    explain,
    compare,
    report,
    vectors,
    trace,
    chain,
    bench,
):
    cli.add_command(command)
