"""The decision records of the specification."""

import re
from dataclasses import dataclass
from pathlib import Path

from conformance.resources import spec_directory

DECISION = re.compile(r"^\*\*Decision\.\*\* (.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Decision:
    """One record: what was decided where frameworks differ."""

    path: str  # within spec/
    title: str
    decision: str  # on one line; empty if the record does not say


def read_decisions(directory: Path | None = None) -> list[Decision]:
    """Every record, by number."""
    directory = directory or spec_directory()
    return [
        decision_of(f"decisions/{path.name}", path.read_text("utf-8"))
        for path in sorted((directory / "decisions").glob("*.md"))
    ]


def decision_of(path: str, text: str) -> Decision:
    """The record of a text."""
    match = DECISION.search(text)
    title = text.partition("\n")[0].removeprefix("# ").strip()
    return Decision(path, title, " ".join(match[1].split()) if match else "")
