"""The little Markdown of a requirement's text as HTML: paragraphs, tables and code as they are, bold, code, quotes."""

import re

from markupsafe import Markup, escape

from conformance.telling.markdown import fences, unlinked

INLINE = re.compile(r"`([^`\n]+)`|\*\*(.+?)\*\*|\*([^*\s][^*]*)\*", re.DOTALL)


def prose(text: str) -> Markup:
    """A text of the specification."""
    return Markup("").join(_block(lines, code) for lines, code in _blocks(unlinked(text)))


def inline(text: str) -> Markup:
    """A sentence of it."""
    found, at = Markup(""), 0
    for match in INLINE.finditer(text):
        found += escape(text[at : match.start()])
        code, bold, italic = match.groups()
        tag, words = ("code", code) if code else ("strong", bold) if bold else ("em", italic)
        found += Markup("<{0}>{1}</{0}>").format(tag, words)
        at = match.end()
    return found + escape(text[at:])


def _blocks(text: str) -> list[tuple[list[str], bool]]:
    """The lines between empty ones, and whether they are to be kept as they are."""
    blocks: list[tuple[list[str], bool]] = []
    open_ = False
    for line, fenced in zip(text.splitlines(), fences(text), strict=True):
        if not fenced and not line.strip():
            open_ = False
            continue
        kept = fenced or line.startswith("|")
        if not open_ or blocks[-1][1] != kept:
            blocks.append(([], kept))
        blocks[-1][0].append(line)
        open_ = True
    return blocks


def _block(lines: list[str], code: bool) -> Markup:
    if code:
        kept = [line for line in lines if not line.lstrip().startswith("```")]
        return Markup("<pre>{}</pre>").format("\n".join(kept))
    if all(line.lstrip().startswith(("-", "*", "  ")) for line in lines):
        return Markup("<ul>{}</ul>").format(Markup("").join(_item(item) for item in _items(lines)))
    return Markup("<p>{}</p>").format(inline("\n".join(lines)))


def _items(lines: list[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        if line.startswith(("- ", "* ")) or not items:
            items.append(line[2:])
        else:
            items[-1] += f"\n{line.strip()}"
    return items


def _item(text: str) -> Markup:
    return Markup("<li>{}</li>").format(inline(text))
