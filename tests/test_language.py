"""The words that CONTRIBUTING takes leave of do not come back, and help is short enough to be read at a glance."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from conformance.cli.commands import cli
from conformance.pytest_plugin import OPTIONS, SEVERAL

ROOT = Path(__file__).parents[1]
RULES = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Language")[2]
REFUSED = re.findall(r"^\| [^|]+ \| `([^`|]+)` \|$", RULES, re.MULTILINE)
PAGE = ROOT / "conformance" / "telling" / "page"
LONGEST = 25


def commands(group: click.Command, name: str = "mha-conformance") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    yield name, group
    for word, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {word}")


COMMANDS = dict(commands(cli))
HELP = {
    name: "\n".join([command.help or "", *(getattr(p, "help", "") or "" for p in command.params)])
    for name, command in COMMANDS.items()
}
TEXTS = {
    **HELP,
    "pytest --help": "\n".join(text for _, text in [*OPTIONS.values(), *SEVERAL.values()]),
    **{
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in (
            ROOT / "README.md",
            *sorted((ROOT / "spec").glob("*.md")),
            *sorted(PAGE.glob("*.html")),
            *sorted(PAGE.glob("*.js")),
            *sorted(PAGE.glob("*.py")),
        )
    },
}


def found(text: str) -> list[str]:
    """The refused phrases in a text, whatever its line ends and capitals."""
    words = " ".join(text.lower().split())
    return [phrase for phrase in REFUSED if phrase in words]


def test_there_are_rules_and_texts() -> None:
    assert len(REFUSED) > 10
    assert len(HELP) > 12
    assert all(HELP.values())
    assert found("It is\nserved from  Somewhere.") == ["served from somewhere"]


@pytest.mark.parametrize("name", TEXTS)
def test_no_refused_phrase_comes_back(name: str) -> None:
    assert not found(TEXTS[name])


@pytest.mark.parametrize("name", HELP)
def test_a_sentence_of_help_is_short(name: str) -> None:
    sentences = [s for line in HELP[name].split("\n\n") for s in re.split(r"(?<=[.;:])\s", line)]
    assert not [s for s in sentences if len(s.split()) > LONGEST]


def test_each_option_says_what_it_does() -> None:
    for name, command in COMMANDS.items():
        for option in command.params:
            text = getattr(option, "help", None)
            if text:
                assert text[0].isupper() or text.startswith("`"), (name, text)
                assert text.endswith("."), (name, text)
