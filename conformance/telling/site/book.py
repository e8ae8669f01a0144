"""The texts of the specification as pages: each requirement with its cases, its mistakes, and who passes it."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.telling.inventory import read_defects
from conformance.telling.markdown import CODE, HEADING, LINK, fences
from conformance.telling.requirements import ID, Requirement, read_requirements
from conformance.telling.site.libraries import Library, Standing
from conformance.vectors.case import Case

FOLDER = "spec"
"""Where the texts stand in the site, with the addresses that they have in a checkout."""
LEFT_OUT = ("INDEX.md",)
FEW = 8
"""Cases and mistakes that a box names."""
MARKS = {"passes": "✓", "fails": "✗", "not supported": "-"}


@dataclass(frozen=True)
class Shelf:
    """What the pages of the book are made of."""

    spec: Path
    requirements: Mapping[str, Requirement]
    covering: Mapping[str, Sequence[Case]]  # requirement -> cases
    mistakes: Mapping[str, Sequence[str]]  # requirement -> sentences of planted defects
    libraries: Sequence[Library]
    repository: str  # address of the source; empty where none is known


def shelf(spec: Path, cases: Iterable[Case], libraries: Sequence[Library], repository: str) -> Shelf:
    """Reads the specification.

    Raises:
        UsageError: no text is found.
    """
    covering: dict[str, list[Case]] = {}
    for case in cases:
        for name in case.covers:
            covering.setdefault(name, []).append(case)
    mistakes: dict[str, list[str]] = {}
    for defect in read_defects():
        for name in defect.violates:
            mistakes.setdefault(name, []).append(defect.sentence)
    requirements = {r.id: r for r in read_requirements(spec)}
    return Shelf(spec, requirements, covering, mistakes, libraries, repository)


def pages(of: Shelf) -> Iterator[tuple[str, str]]:
    """Path within the site and text of every page of the book."""
    for path in sorted([*of.spec.glob("*.md"), *of.spec.glob("decisions/*.md")]):
        name = path.relative_to(of.spec).as_posix()
        if name not in LEFT_OUT:
            page = "index.md" if name == "README.md" else name
            yield f"{FOLDER}/{page}", page_of(of, name, path.read_text("utf-8"))
    program = (of.spec / "definition.py").read_text("utf-8")
    yield f"{FOLDER}/definition.md", f"# The definition on one screen\n\n```python\n{program}```\n"


def page_of(of: Shelf, name: str, text: str) -> str:
    """A text with anchors that the generator knows, links that lead somewhere, and a box at each requirement."""
    found: list[str] = []
    open_: Requirement | None = None
    for line, fenced in zip(text.splitlines(), fences(text), strict=True):
        match = None if fenced else HEADING.fullmatch(line)
        if match:
            found += _box(of, open_)
            id_ = ID.match(match[2])
            open_ = of.requirements.get(id_[0]) if id_ and match[3] else None
            anchor = f" {{#{match[3]}}}" if match[3] else ""
            found.append(f"{match[1]} {match[2]}{anchor}")
        else:
            found.append(line if fenced else _linked(of, name, line))
    return "\n".join([*found, *_box(of, open_)]) + "\n"


def _linked(of: Shelf, name: str, line: str) -> str:
    """The line with links that lead out of the book turned to the repository, or taken out."""

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if not target or target.startswith(("http:", "https:", "mailto:")):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        words = match[0][: match[0].rindex("](") + 1]
        suffix = f"#{anchor}" if anchor else ""
        if path == "definition.py":
            return f"{words}({target.replace('.py', '.md')}{suffix})"
        if path == "README.md":
            return f"{words}({target.replace('README.md', 'index.md')}{suffix})"
        if path.endswith(".md") and not path.startswith("..") and path not in LEFT_OUT:
            return match[0]
        if of.repository:
            return f"{words}({of.repository}/blob/main/{posixpath.normpath(f'spec/{path}')}{suffix})"
        return words[1:-1]

    codes = CODE.findall(line)
    held = CODE.sub("\0", line)
    return re.sub("\0", lambda _: codes.pop(0), LINK.sub(link, held)) if codes else LINK.sub(link, line)


def _box(of: Shelf, requirement: Requirement | None) -> list[str]:
    """What stands below a requirement: who passes it, its cases, mistakes that break it."""
    if requirement is None or requirement.withdrawn:
        return []
    cases, mistakes = of.covering.get(requirement.id, []), of.mistakes.get(requirement.id, [])
    standings = [(library, library.requirements.get(requirement.id)) for library in of.libraries]
    lines = ['<div class="who" markdown>', ""]
    if standings:
        lines += [who(standings, "../libraries/", requirement.id), ""]
    about = [f"{len(cases)} case{'s' * (len(cases) != 1)}", f"{len(mistakes)} known mistakes break it"]
    lines += [f'??? note "{" · ".join(about)}"', ""]
    names = [f"[`{case.id}`](../cases/{case.id.replace('/', '.md#', 1)})" for case in cases[:FEW]]
    more = f" and {len(cases) - FEW} more" if len(cases) > FEW else ""
    if names:
        lines += [f"    Cases: {', '.join(names)}{more}.", ""]
    lines += [f"    - {sentence}" for sentence in mistakes[:FEW]]
    if len(mistakes) > FEW:
        lines.append(f"    - and {len(mistakes) - FEW} more: `mha-conformance explain {requirement.id}`")
    return ["", *lines, "", "</div>", ""]


def who(standings: Sequence[tuple[Library, Standing | None]], to: str, anchor: str) -> str:
    """One line: each library with a mark, and a link to what fails."""
    parts = []
    for library, standing in standings:
        outcome = standing.outcome if standing else "not supported"
        kind = outcome.split()[0]
        title = f"{library.label}: {outcome}"
        if standing and standing.failing:
            title += f", {standing.share} tests"
        place = f"#{anchor.lower()}" if outcome == "fails" else ""
        parts.append(
            f'[{MARKS[outcome]} {library.label}]({to}{library.page}.md{place}){{ .{kind} title="{title}" }}'
        )
    return " ".join(parts)
