"""The little of Markdown that the specification is checked by: headings, sections, links, prose."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEADING = re.compile(r"(#{1,6}) +(.*?)(?: <a id=\"([^\"]*)\"></a>)?[ \t]*")
"""Marks, words, and an anchor of its own, which survives any rewording."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True)
class Section:
    """What stands from one heading to the next."""

    level: int  # 1 = #
    heading: str
    line: int  # of the heading, from 1
    body: str
    anchor: str = ""  # its own, next to the one that its words make


def sections(text: str) -> list[Section]:
    """The sections of a text; what looks like a heading inside a code block is none."""
    lines, fenced = text.splitlines(), fences(text)
    starts = [
        (number, match)
        for number, line in enumerate(lines)
        if not fenced[number] and (match := HEADING.fullmatch(line))
    ]
    ends = [number for number, _ in starts[1:]] + [len(lines)]
    return [
        Section(
            level=len(match[1]),
            heading=match[2],
            line=number + 1,
            body="\n".join(lines[number + 1 : end]).strip("\n"),
            anchor=match[3] or "",
        )
        for (number, match), end in zip(starts, ends, strict=True)
    ]


def fences(text: str) -> list[bool]:
    """For each line, whether it belongs to a block of code."""
    inside, found = False, []
    for line in text.splitlines():
        edge = line.lstrip().startswith("```")
        found.append(inside or edge)
        inside ^= edge
    return found


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, code left out."""
    for number, (line, fenced) in enumerate(zip(text.splitlines(), fences(text), strict=True), 1):
        if not fenced:
            yield number, CODE.sub("", line)


def links(text: str) -> Iterator[tuple[int, str]]:
    """The targets of links, with their lines."""
    for number, line in prose(text):
        yield from ((number, match[1]) for match in LINK.finditer(line))


def anchors(text: str) -> set[str]:
    """The anchors of the headings: those that code hosts make of their words, and their own."""
    found: set[str] = set()
    for section in sections(text):
        slug = re.sub(r"[^\w\- ]", "", section.heading.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found | {section.anchor for section in sections(text) if section.anchor}


def unlinked(text: str) -> str:
    """The text with links as their words alone."""
    return re.sub(r"\[([^\]]*)\]\([^)\s]+\)", r"\1", text)
