"""Whether some case shows each planted defect: as recorded, or found out now."""

import json
from collections.abc import Iterator

from conformance.errors import UsageError
from conformance.resources import PACKAGE
from conformance.telling.trace.holes import Hole
from conformance.telling.trace.links import Links

RECORD = PACKAGE / "defects" / "kills.json"
"""What `python -m conformance.defects --json` prints: a list of `id`, `killed_by`: dtype -> cases, `problems`."""
WRITE = "python -m conformance.defects --json > conformance/defects/kills.json"


def holes(links: Links, run: bool) -> Iterator[Hole]:
    """Defects that no case kills at a dtype where one must; found out by running them all, or as recorded.

    Raises:
        UsageError: there is a record, and it cannot be read.
    """
    if run:
        from conformance.defects.kill import matrix  # starts processes

        for kill in matrix(links.defects):
            yield from (Hole(f"defect {kill.defect.id}", problem) for problem in kill.problems)
    elif RECORD.is_file():
        yield from recorded(links, RECORD.read_text("utf-8"))
    else:
        yield Hole("conformance/defects/kills.json", f"is missing; write it with {WRITE}")


def read_kills(text: str | None = None) -> dict[str, dict[str, list[str]]]:
    """Defect -> dtype -> cases that show it, as recorded; nothing if there is no record.

    Raises:
        UsageError: it cannot be read.
    """
    if text is None:
        text = RECORD.read_text("utf-8") if RECORD.is_file() else "[]"
    try:
        return {kill["id"]: dict(kill["killed_by"]) for kill in json.loads(text)}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{RECORD} cannot be read: {error!r}; write it with {WRITE}") from error


def recorded(links: Links, text: str) -> Iterator[Hole]:
    """The same, as a record says; a case that is no longer there kills nothing."""
    kills = read_kills(text)
    cases = {case.id for case in links.cases}
    for defect in links.defects:
        if defect.id not in kills:
            yield Hole(f"defect {defect.id}", f"is not in the record of kills; write it anew with {WRITE}")
            continue
        for dtype in defect.observable:
            if not cases & set(kills[defect.id].get(dtype, ())):
                yield Hole(f"defect {defect.id}", f"no case kills it at {dtype}")
    for name in sorted(kills.keys() - {defect.id for defect in links.defects}):
        yield Hole(f"defect {name}", "is in the record of kills and no longer in the bank")
