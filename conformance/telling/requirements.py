"""The requirements of the specification, as its headings and first lines state them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.errors import UsageError
from conformance.resources import spec_directory
from conformance.telling.markdown import Section, sections

ID = re.compile(r"[A-Z]+-\d+")
HEADING = re.compile(rf"({ID.pattern})(?: +(.+))?")
"""The ID and the short name."""
STATEMENT = re.compile(r"\s*(?:\*\*(?P<title>.+?)\*\*)?\s*(?:\*(?P<notes>[^*\n]+)\*)?(?P<rest>.*)", re.DOTALL)
"""**title** *level · feature · since version*, then text and a quoted rationale."""
RATIONALE = re.compile(r"^> \*\*Rationale\.\*\* ?(.*?)(?=\n[^>]|\Z)", re.MULTILINE | re.DOTALL)
DECISION = re.compile(r"\]\((decisions/[^)#]+)")

SINCE = re.compile(r"since (\d+\.\d+)")

LEVELS = ("MUST", "SHOULD", "MAY")
LEDGER = "DOC-"
"""Headings of this form in the documents' ledger are entries and no requirements."""
GENERATED = "INDEX.md"


@dataclass(frozen=True)
class Requirement:
    """One numbered requirement."""

    id: str
    name: str  # a few words that stand next to the ID wherever people read it
    title: str
    notes: tuple[str, ...]  # level, feature, since when, `untested: why`
    file: str  # within spec/
    line: int = 0
    anchor: str = ""  # of its heading
    text: str = ""  # what belongs to it beyond the title
    rationale: str = ""
    decisions: tuple[str, ...] = ()  # paths within spec/

    @property
    def label(self) -> str:
        """The ID with the short name: `ATT-3 default scale`."""
        return f"{self.id} {self.name}".rstrip()

    @property
    def withdrawn(self) -> bool:
        """Whether it no longer holds."""
        return any(note.startswith("Withdrawn") for note in self.notes)

    @property
    def level(self) -> str:
        """MUST, SHOULD or MAY."""
        return self.notes[0] if self.notes else ""

    @property
    def features(self) -> tuple[str, ...]:
        """The features that it belongs to; none for core."""
        names = self.notes[1].split(" + ") if len(self.notes) > 1 else []
        return tuple(name for name in names if name != "core")

    @property
    def since(self) -> str:
        """The version of the specification that it holds from; empty where none is given."""
        match = SINCE.fullmatch(self.notes[2]) if len(self.notes) > 2 else None
        return match[1] if match else ""

    @property
    def untested(self) -> str:
        """Why no case covers it; empty where some case must."""
        return next((n.removeprefix("untested: ") for n in self.notes if n.startswith("untested")), "")

    @property
    def chapter(self) -> str:
        """The file it stands in, without its ending."""
        return self.file.removesuffix(".md")


def read_requirements(directory: Path | None = None) -> list[Requirement]:
    """Every requirement of the texts of spec/, by ID.

    Raises:
        UsageError: no text is found.
    """
    directory = directory or spec_directory()
    found = [
        requirement
        for path in sorted(directory.glob("*.md"))
        if path.name != GENERATED
        for requirement in requirements_of(path.name, path.read_text("utf-8"))
    ]
    if not found:
        raise UsageError(f"no requirement is found in {directory}; reinstall mha-conformance")
    return sorted(found, key=lambda requirement: id_order(requirement.id))


def in_force() -> list[str]:
    """The IDs of the requirements that are not withdrawn."""
    return [requirement.id for requirement in read_requirements() if not requirement.withdrawn]


def requirements_of(file: str, text: str) -> list[Requirement]:
    """The requirements of one text, in their order."""
    return [
        _requirement(file, section, match[1], match[2] or "")
        for section in sections(text)
        if section.level == 3
        and (match := HEADING.fullmatch(section.heading))
        and not match[1].startswith(LEDGER)
    ]


def _requirement(file: str, section: Section, id_: str, name: str) -> Requirement:
    match = STATEMENT.fullmatch(section.body)
    assert match is not None  # every group is optional
    rationale = RATIONALE.search(match["rest"])
    return Requirement(
        id=id_,
        name=name,
        title=" ".join((match["title"] or "").split()),
        notes=tuple(note.strip() for note in (match["notes"] or "").split("·") if note.strip()),
        file=file,
        line=section.line,
        anchor=section.anchor,
        text=re.sub(r"\n{3,}", "\n\n", RATIONALE.sub("", match["rest"])).strip(),
        rationale=re.sub(r"^> ?", "", rationale[1], flags=re.MULTILINE).strip() if rationale else "",
        decisions=tuple(dict.fromkeys(DECISION.findall(section.body))),
    )


def id_order(requirement: str) -> tuple[str, int]:
    """Sorts MASK-2 before MASK-10."""
    chapter, _, number = requirement.rpartition("-")
    return chapter, int(number)


def named(requirement: str) -> str:
    """The ID with its short name, as people read it; the ID alone where this version of the text has none."""
    return _labels().get(requirement, requirement)


def named_all(requirements: Iterable[str]) -> str:
    """The same of several."""
    return ", ".join(map(named, requirements))


@cache
def _labels() -> dict[str, str]:
    return {requirement.id: requirement.label for requirement in read_requirements()}
