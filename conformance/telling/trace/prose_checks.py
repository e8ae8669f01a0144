"""Faults in the texts of spec/: links to nowhere, words of obligation outside requirements, unknown IDs."""

import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath

from conformance.telling.markdown import anchors, links, prose, sections
from conformance.telling.requirements import GENERATED, ID, LEDGER
from conformance.telling.trace.links import Links

KEYWORD = re.compile(r"\b(MUST|SHOULD|MAY)\b")
ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)

Found = Iterator[tuple[str, str]]
"""Where, and what."""


def dangling(linked: Links) -> Found:
    """Links to a file or an anchor that is not there."""
    known: dict[str, set[str]] = {}
    for file, text in linked.texts.items():
        for line, target in links(text):
            if ELSEWHERE.match(target):
                continue
            path, _, anchor = target.partition("#")
            goal = normpath(join(dirname(file), path)) if path else file
            if not (linked.spec / goal).exists():
                if goal != GENERATED:  # that it is missing is said once
                    yield f"spec/{file}:{line}", f"links {target}, which is not there"
            elif anchor:
                if goal not in known:
                    known[goal] = anchors((linked.spec / goal).read_text("utf-8"))
                if anchor not in known[goal]:
                    yield f"spec/{file}:{line}", f"links {target}, and {goal} has no heading of that name"


def loose_keywords(linked: Links) -> Found:
    """MUST, SHOULD and MAY where they would bind nobody."""
    binding = {file: _requirement_lines(linked, file) for file in linked.texts}
    for file, text in linked.texts.items():
        for line, words in prose(text):
            match = KEYWORD.search(words)
            if match and line not in binding[file]:
                yield f"spec/{file}:{line}", f"says {match[1]} outside a requirement (CONF-1)"


def _requirement_lines(linked: Links, file: str) -> set[int]:
    starts = {r.line for r in linked.requirements if r.file == file}
    every = sections(linked.texts[file])
    ends = [section.line for section in every[1:]] + [len(linked.texts[file].splitlines()) + 1]
    return {
        line
        for section, end in zip(every, ends, strict=True)
        if section.line in starts
        for line in range(section.line, end)
    }


def unknown_mentions(linked: Links) -> Found:
    """IDs in the texts that are no requirement's, in a chapter of requirements that there is."""
    known = {requirement.id for requirement in linked.requirements}
    chapters = {name.partition("-")[0] for name in known}
    for file, text in linked.texts.items():
        for line, words in prose(text):
            for name in re.findall(rf"\b{ID.pattern}\b", words):
                if name.partition("-")[0] in chapters and name not in known and not name.startswith(LEDGER):
                    yield f"spec/{file}:{line}", f"names {name}, which is no requirement"
