"""Which of the declared cases are meant: those named, a chapter, a fixed share of all."""

import hashlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from conformance.errors import UsageError


def chosen(names: Sequence[str], share: str | None, known: Iterable[str]) -> set[str]:
    """The IDs that the names of cases and chapters, and the share, stand for.

    Raises:
        UsageError: no case and no chapter has such a name, or the share is none.
    """
    ids = list(known)
    found = set() if share is None else _share(share, ids)
    for name in names:
        found |= _named(name, ids)
    return found


def _named(name: str, ids: list[str]) -> set[str]:
    """A case by its ID, or the cases of a chapter."""
    found = {id_ for id_ in ids if name in (id_, id_.split("/")[0])}
    if not found:
        chapters = sorted({id_.split("/")[0] for id_ in ids})
        close = get_close_matches(name, [*chapters, *ids], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the chapters are {', '.join(chapters)}"
        raise UsageError(f"no case or chapter is named {name!r:.200}; {hint}")
    return found


def _share(text: str, ids: list[str]) -> set[str]:
    """The I-th of N parts, the same on every machine and whatever other cases there are."""
    part, _, parts = text.partition("/")
    numbers = [int(x) if x.isascii() and x.isdecimal() and len(x) < 10 else 0 for x in (part, parts)]
    if not 1 <= numbers[0] <= numbers[1]:
        raise UsageError(f"--share is {text!r:.60}; it is I/N with I from 1 to N, such as 2/7")
    return {
        id_ for id_ in ids if int(hashlib.sha256(id_.encode()).hexdigest(), 16) % numbers[1] == numbers[0] - 1
    }
