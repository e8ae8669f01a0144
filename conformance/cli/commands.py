"""The calls of the command, put together: the file of each is imported when it is called."""

import importlib

import click

from conformance.cli.exit_codes import CONFORMANT, MISUSED, examples
from conformance.garbage import no_search
from conformance.running.suggestions import nearest
from conformance.running.text_limits import shorten
from conformance.version import SPEC_VERSION, SUITE_VERSION, VECTORS_VERSION

COMMANDS = {
    "bench": ("benching:bench", "Measure speed and memory of TARGET next to its rivals."),
    "chain": ("chaining:chain", "Say what REQUIREMENT still lacks, from its text to the index,..."),
    "compare": ("comparing:compare", "Show what changed from report A to report B; exit status 1 if..."),
    "diagnose": ("diagnosing:diagnose", "Name the known mistakes that explain the failures of TARGET."),
    "explain": ("inspecting:explain", "Explain REQUIREMENT: its text, rationale and decision, its..."),
    "explore": ("exploring:explore", "Draw fresh calls of what TARGET claims, and reduce and..."),
    "init": ("starting:init", "Write FILE, a commented plug-in to start from: it runs at..."),
    "judge": ("judging:judge", "Accept or reject the program TARGET on one problem, by fresh..."),
    "list": ("inspecting:list_", "List what the suite holds."),
    "report": ("reporting:report", "Print a table of one or many reports: chapter by target, then..."),
    "run": ("running:run", "Test TARGET with every case that it supports."),
    "show": ("inspecting:show", "Show CASE in full: what it exposes, requirements, inputs,..."),
    "trace": ("tracing:trace", "Trace requirements, cases, defects and tests to each other;..."),
    "vectors": ("vectors:vectors", "The vectors as data, for readers in other languages."),
}
"""Where each is, and the line that it has in the help."""


class _Commands(click.Group):
    """A group that imports a command when it is called, and none for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """The command of a name."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            with no_search():
                found = getattr(importlib.import_module(f"conformance.cli.{module}"), attribute)
            self.add_command(found, cmd_name)
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; of an unknown one the nearest is named."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = nearest(args[0], COMMANDS) or (
                f"; did you mean 'run {args[0]}'?" if args[0].endswith(".py") or ".py:" in args[0] else ""
            )
            raise click.UsageError(f"No such command {shorten(args[0])!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])


def loaded() -> dict[str, click.Command]:
    """All of them by name."""
    found = {name: cli.get_command(None, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


@click.group(
    cls=_Commands,
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
