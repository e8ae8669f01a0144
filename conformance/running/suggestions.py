"""One line for an unknown name: what was given, the nearest known one, where the others are listed."""

from collections.abc import Iterable
from difflib import get_close_matches

from conformance.errors import UsageError
from conformance.running.text_limits import shorten


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean X?` for a name close to a known one, else nothing."""
    close = nearest_of(name, names)
    return f"; did you mean {close!r}?" if close else ""


def nearest_of(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """The known name that is close to a name, if there is one; at a cutoff of 1 only the name itself is."""
    close = get_close_matches(name, list(names), n=1, cutoff=cutoff) if len(name) <= 300 else []
    return close[0] if close else ""


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of the names.

    Raises:
        UsageError: it is not; the message gives the nearest one, or all of a few.
    """
    names = list(names)
    if name in names:
        return name
    hint = nearest(name, names) or (f"; known are {', '.join(names)}" if len(names) <= 24 else "")
    raise UsageError(f"unknown {kind} {shorten(name)!r}{hint}")
