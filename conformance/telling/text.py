"""Text for a terminal: what came from elsewhere can neither move the cursor nor be read as markup."""

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
    "conformant": "bold green",
    "non-conformant": "bold red",
    "incomplete": "bold yellow",
}
WIDE = 1000
"""Columns of what is no terminal: lines there are never folded."""


def safe(text: str) -> str:
    """The text with its control and formatting characters escaped."""
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
        else character
        for character in text
    )


def plain(text: str, style: str = "") -> Text:
    """The text as rich prints it: no markup, no control characters."""
    return Text(safe(text), style=style)


def console(stderr: bool = False) -> Console:
    """A console on one of the standard streams."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = WIDE
    return made
