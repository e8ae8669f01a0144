"""The words that CONTRIBUTING takes leave of do not come back, and help is short enough to be read at a glance."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from conformance.cli.commands import cli, loaded
from conformance.pytest_plugin import OPTIONS, SEVERAL

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
RULES = CONTRIBUTING.partition("## Language")[2]
REFUSED = re.findall(r"^\| [^|]+ \| `([^`|]+)` \|$", RULES, re.MULTILINE)
PAGE = ROOT / "conformance" / "telling" / "page"
LONGEST = 25
SAYING = ("telling", "cli", "running", "judging")
"""Folders of the suite whose docstrings are read as texts, as those of the suite itself are."""
GENERATED = {"INDEX.md"}


def commands(group: click.Command, name: str = "mha-conformance") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    yield name, group
    for word, command in (loaded() if group is cli else getattr(group, "commands", {})).items():
        yield from commands(command, f"{name} {word}")


def strings(path: Path) -> tuple[str, str]:
    """The docstrings and comments of attributes of a file, and its other texts of several words."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    own = {id(node) for node in docs}
    others = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in own]
    printed = [n.value for n in others if isinstance(n.value, str) and " " in n.value]
    return "\n".join(str(node.value) for node in docs), "\n".join(printed)


SUITE = [
    *sorted((ROOT / "conformance").glob("*.py")),
    *(path for folder in SAYING for path in sorted((ROOT / "conformance" / folder).rglob("*.py"))),
]
COMMANDS = dict(commands(cli))
HELP = {
    name: "\n".join([command.help or "", *(getattr(p, "help", "") or "" for p in command.params)])
    for name, command in COMMANDS.items()
}
TEXTS = {
    **HELP,
    "pytest --help": "\n".join(text for _, text in [*OPTIONS.values(), *SEVERAL.values()]),
    "CONTRIBUTING.md": re.sub(r"^\| [^|]+ \| `[^`|]+` \|$", "", CONTRIBUTING, flags=re.MULTILINE),
    **{
        f"{path.relative_to(ROOT).as_posix()}: {what}": text
        for path in SUITE
        for what, text in zip(("docstrings", "texts"), strings(path), strict=True)
        if text
    },
    **{
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in (
            ROOT / "README.md",
            *(path for path in sorted((ROOT / "spec").glob("*.md")) if path.name not in GENERATED),
            *sorted((ROOT / "conformance" / "templates").glob("*.txt")),
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
    assert len(REFUSED) > 25
    assert sum(name.endswith("docstrings") for name in TEXTS) > 100
    assert len(HELP) > 12
    assert all(HELP.values())
    assert found("It is\nserved from  Somewhere.") == ["served from somewhere"]


@pytest.mark.parametrize("name", TEXTS)
def test_no_refused_phrase_comes_back(name: str) -> None:
    assert not found(TEXTS[name])


@pytest.mark.parametrize("name", ["README.md", "targets.md", "reports.md"])
def test_a_sentence_of_a_guide_is_short(name: str) -> None:
    page = ROOT / name if name == "README.md" else ROOT / "spec" / name
    prose = re.sub(
        r"^```.*?^```|^\|.*?$|<!--.*?-->|^#.*?$", "\n\n", page.read_text("utf-8"), flags=re.M | re.S
    )
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    blocks = re.split(r"\n\s*\n|^- |^\d\. ", prose, flags=re.M)
    parts = [part for block in blocks for part in re.split(r"(?<=[.;:])\s", block)]
    assert not [part for part in parts if len(part.split()) > LONGEST]


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
