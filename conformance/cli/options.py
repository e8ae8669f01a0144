"""Options that several commands take: each is written once, and its name is the keyword of `Request.of`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from conformance.running.request import Request  # imports the runner, which a list has no need of

FILE = click.Path(path_type=Path)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

target = click.argument("target", required=False)
command = click.option(
    "--command", metavar="PROGRAM", help="Test a program that speaks the line protocol, in place of TARGET."
)
op = click.option(
    "--op",
    metavar="NAME",
    help="Test this operation only; also the operation of a function with another name.",
)
dtype = click.option("--dtype", metavar="D", multiple=True, help="Test this dtype only (repeatable).")
device = click.option("--device", metavar="DEV", help="Device on which the arrays are made.")
accuracy = click.option(
    "--accuracy", metavar="POLICY", help="Tolerance policy, in place of the one that the target declares."
)
report = click.option(
    "--report", type=FILE, metavar="OUT.json", help="Write the report as JSON, updated during the run."
)
junit = click.option("--junit", type=FILE, metavar="OUT.xml", help="Write JUnit XML.")
card = click.option(
    "--card",
    type=FILE,
    metavar="OUT.svg",
    is_flag=False,
    flag_value="mha-card.svg",
    help="Write a picture to share, mha-card.svg unless a name is given.",
)
link = click.option(
    "--link", metavar="URL", default="", help="Address of the whole report, shown on the card."
)
html = click.option("--html", type=FILE, metavar="OUT.html", help="Write an HTML report.")
stop = click.option("-x", "x", is_flag=True, help="Stop at the first failure.")
no_diagnose = click.option(
    "--no-diagnose", is_flag=True, help="Do not look for known mistakes that explain the failures."
)
quiet = click.option("-q", "quiet", is_flag=True, help="Print the last line only.")


def feature(of: str) -> Decorator:
    """`--feature` of what is asked: cases, calls."""
    words = f"Only {of} that need this feature (repeatable)."
    return click.option("--feature", metavar="F", multiple=True, help=words)


def baseline(words: str) -> Decorator:
    """`--baseline`, with what it holds."""
    return click.option("--baseline", type=FILE, metavar="KNOWN.toml", help=words)


def timeout(words: str) -> Decorator:
    """`--timeout`, with what it limits."""
    from conformance.running.request import TIMEOUT

    return click.option(
        "--timeout", type=float, default=TIMEOUT, show_default=True, metavar="SECONDS", help=words
    )


def verbose(words: str) -> Decorator:
    """`-v`, with what it prints."""
    return click.option("-v", "verbose", is_flag=True, help=words)


REQUEST = (
    "target", "command", "profile", "op", "dtype", "device", "accuracy", "k", "feature", "timeout", "shard",
    "in_process", "x", "j",
)  # fmt: skip
"""The options that make a request."""


def request_of(options: dict[str, Any]) -> "Request":
    """The request that is among the options of a command, which keeps the others.

    Raises:
        UsageError: they do not go together, or a name is unknown.
    """
    from conformance.running.request import Request

    return Request.of(**{name: options.pop(name) for name in REQUEST if name in options})
