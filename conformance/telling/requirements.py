"""The requirements of the specification, as its headings and first lines state them."""

import re
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import UsageError
from conformance.resources import spec_directory

ENTRY = re.compile(
    r"^### (?P<id>[A-Z]+-\d+)[ \t]*\n\s*(?:\*\*(?P<title>.+?)\*\*)?[ \t]*(?:\*(?P<notes>[^*\n]+)\*)?",
    re.MULTILINE | re.DOTALL,
)
"""### ID, an empty line, **title** *level · feature · since version*."""


@dataclass(frozen=True)
class Requirement:
    """One numbered requirement."""

    id: str
    title: str
    notes: tuple[str, ...]  # level, feature, since when, `untested: why`
    file: str  # within spec/

    @property
    def withdrawn(self) -> bool:
        """Whether it no longer holds."""
        return any(note.startswith("Withdrawn") for note in self.notes)


def read_requirements(directory: Path | None = None) -> list[Requirement]:
    """Every requirement of the texts of spec/, by ID.

    Raises:
        UsageError: no text is found.
    """
    directory = directory or spec_directory()
    found = [
        Requirement(
            id=match["id"],
            title=" ".join((match["title"] or "").split()),
            notes=tuple(note.strip() for note in (match["notes"] or "").split("·") if note.strip()),
            file=path.name,
        )
        for path in sorted(directory.glob("*.md"))
        if path.name != "INDEX.md"
        for match in ENTRY.finditer(path.read_text("utf-8"))
    ]
    if not found:
        raise UsageError(f"no requirement is found in {directory}; reinstall mha-conformance")
    return sorted(found, key=lambda requirement: id_order(requirement.id))


def id_order(requirement: str) -> tuple[str, int]:
    """Sorts MASK-2 before MASK-10."""
    chapter, _, number = requirement.rpartition("-")
    return chapter, int(number)
