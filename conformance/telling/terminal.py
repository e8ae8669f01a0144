"""Text for a terminal: what came from elsewhere can neither move the cursor nor be read as markup."""

import os
import re
import unicodedata

from rich.console import Console
from rich.text import Text

STYLES = {
    "pass": "green",
    "fail": "red",
    "error": "red",
    "crash": "bold red",
    "timeout": "bold red",
    "unsupported": "dim",
    "xfail": "yellow",
    "xpass": "bold red",
    "conformant": "bold green",
    "non-conformant": "bold red",
    "incomplete": "bold yellow",
}
WIDE = 1000
"""Columns of what is no terminal, unless COLUMNS says: lines there are never folded."""
TABLE = 120
"""Columns of a table with sentences in it that goes to no terminal, unless COLUMNS says: its cells are folded."""
NAME = 60
"""Characters of a name that are shown; a target may give itself any."""
MESSAGE = 4000
"""Characters of a message that are shown; a report keeps all."""
COMMAND = re.compile(r"((?:^|(?<=\s))(?=::)|#(?=#\w*\[))")
"""What CIs obey: `::error::` where a line begins or may be broken, `##vso[` or `##[` anywhere."""


def shorten(text: str, limit: int = NAME) -> str:
    """The beginning of a text that is too long to be read."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def counted(number: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def safe(text: str) -> str:
    """The text with its control and formatting characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else character
        for character in text
    )


def inert(text: str) -> str:
    """The safe text, broken where it would be a command to whatever reads the log."""
    return COMMAND.sub(r"\1\\", safe(text))


def plain(text: str, style: str = "") -> Text:
    """The text as rich prints it: no markup, no control characters, no command to a CI that reads the log."""
    return Text(inert(text), style=style)


def console(stderr: bool = False) -> Console:
    """A console on one of the standard streams."""
    columns = _columns()
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    made = Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        width=columns,
        _environ=own,  # rich fails where those two are no numbers
    )
    if not made.is_terminal:
        made.width = columns or WIDE
    return made


def table_width(to: Console) -> int:
    """How wide a table with sentences in it may be."""
    return to.width if to.is_terminal or _columns() else min(to.width, TABLE)


def _columns() -> int | None:
    """The width that COLUMNS asks for, if it is one."""
    match = re.fullmatch(r"0*([1-9][0-9]{1,4})", os.environ.get("COLUMNS", ""))
    return int(match[1]) if match else None
