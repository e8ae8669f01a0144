"""The weights of each head drawn over the tokens: in squares for a terminal, as SVG, as a page."""

import html as markup
import math
import unicodedata
from collections.abc import Sequence

from mha_core.checks import shape_of
from mha_core.result import Array

SHADES = " ░▒▓█"
"""Five shades, from no weight to all of it."""
CELL, TEXT = 24, 8
"""Sizes in an SVG: the side of a square, and the width that one letter is given."""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body style="font-family: sans-serif">
<h1>{title}</h1>
{figures}
</body>
</html>
"""


def terminal(
    weights: Array,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    titles: Sequence[str] | None = None,
    shades: str = SHADES,
) -> str:
    """The weights as squares, one block a head: a row for each query, a column for each key.

    The darker a square, the more weight. `shades="□■"` draws the two squares of teaching texts (DOC-62).

    Args:
        weights: (H, q_len, kv_len), as `return_weights` gives them.
        queries: q_len tokens; what cannot be printed is escaped.
        keys: kv_len tokens; None is the queries.
        titles: H of them; None numbers the heads.
        shades: from little to much weight, each an equal part of 0 to 1; two are dark from 1/2 on.

    Returns:
        Lines; `?` is where a weight is NaN.

    Raises:
        ValueError: shapes and tokens disagree, or there are no shades.

    >>> import numpy as np
    >>> one, two = np.eye(3), np.eye(3)[[1, 0, 1]]
    >>> print(terminal(np.stack([one, two]), ["The", "dog", "ate"], titles=["Head 1", "Head 2"]))
    Head 1
         The dog ate
    The [█          ]
    dog [    █      ]
    ate [        █  ]
    <BLANKLINE>
    Head 2
         The dog ate
    The [    █      ]
    dog [█          ]
    ate [    █      ]
    """
    if not shades:
        raise ValueError("shades is empty but at least one square is needed")
    rows, columns, names = _labels(weights, queries, keys, titles)
    margin = max((_width(row) for row in rows), default=0)
    widths = [max(_width(column), 1) for column in columns]
    header = " ".join(_filled(column, width) for column, width in zip(columns, widths, strict=True))
    blocks = []
    for head, name in zip(_numbers(weights), names, strict=True):
        lines = [name, " " * (margin + 2) + header.rstrip()]
        for row, line in zip(rows, head, strict=True):
            squares = [_filled(_shade(x, shades), width) for x, width in zip(line, widths, strict=True)]
            lines.append(f"{_filled(row, margin)} [{' '.join(squares)}]")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


class Drawing(str):
    """An SVG as text, which a notebook shows as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def svg(
    weights: Array,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    titles: Sequence[str] | None = None,
) -> Drawing:
    """One SVG of all heads side by side: the more weight, the darker, with the number to point at.

    Args:
        weights: see `terminal`, as for the others.
        queries: see there; every text is escaped.
        keys: see there.
        titles: see there.

    Returns:
        An `<svg>` element, to be put into a page or a file of its own, which a notebook shows; NaN is red.

    Raises:
        ValueError: shapes and tokens disagree.
    """
    rows, columns, names = _labels(weights, queries, keys, titles)
    left = TEXT * max((_width(row) for row in rows), default=0) + 8
    top = TEXT * max((_width(column) for column in columns), default=0) + 32
    pitch = max([left + CELL * len(columns), *(TEXT * _width(name) for name in names)]) + CELL
    parts = []
    for number, (head, name) in enumerate(zip(_numbers(weights), names, strict=True)):
        parts.append(f'<g transform="translate({number * pitch},0)">')
        parts.append(f'<text x="0" y="16" font-weight="bold">{markup.escape(name)}</text>')
        for j, column in enumerate(columns):
            x = left + CELL * j + CELL // 2 + 4
            parts.append(
                f'<text transform="translate({x},{top - 4}) rotate(-90)">{markup.escape(column)}</text>'
            )
        for i, (row, line) in enumerate(zip(rows, head, strict=True)):
            y = top + CELL * i
            parts.append(f'<text x="{left - 4}" y="{y + 17}" text-anchor="end">{markup.escape(row)}</text>')
            parts += [
                _square(left + CELL * j, y, weight, f"{row} → {column}")
                for j, (column, weight) in enumerate(zip(columns, line, strict=True))
            ]
        parts.append("</g>")
    width, height = pitch * max(len(names), 1), top + CELL * len(rows) + 8
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return Drawing("\n".join([f'{opening} font-family="monospace" font-size="13">', *parts, "</svg>"]))


def html(
    weights: Array,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    titles: Sequence[str] | None = None,
    title: str = "Attention",
) -> str:
    """A page with the drawing of `svg`, which needs no other file.

    Args:
        weights: see `terminal`, as for the others.
        queries: see there; every text is escaped.
        keys: see there.
        titles: see there.
        title: the heading.

    Returns:
        An HTML document.

    Raises:
        ValueError: shapes and tokens disagree.
    """
    figure = svg(weights, queries, keys, titles=titles)
    return PAGE.format(title=markup.escape(_printable(title)), figures=figure)


def _labels(
    weights: Array, queries: Sequence[str], keys: Sequence[str] | None, titles: Sequence[str] | None
) -> tuple[list[str], list[str], list[str]]:
    """What is written at rows, columns and heads, as many as there are."""
    shape = shape_of(weights)
    if len(shape) != 3:
        raise ValueError(f"weights has shape {shape} but needs (H, q_len, kv_len): take one batch entry")
    names = [f"Head {i + 1}" for i in range(shape[0])] if titles is None else titles
    given = {"queries": queries, "keys": queries if keys is None else keys, "titles": names}
    for (name, labels), n in zip(given.items(), (shape[1], shape[2], shape[0]), strict=True):
        if len(labels) != n:
            raise ValueError(f"{name} has {len(labels)} texts but weights of shape {shape} needs {n}")
    rows, columns, heads = ([_printable(text) for text in labels] for labels in given.values())
    return rows, columns, heads


def _numbers(weights: Array) -> list[list[list[float]]]:
    """The weights as Python's numbers."""
    heads, rows, columns = (range(n) for n in shape_of(weights))
    return [[[float(weights[h, i, j]) for j in columns] for i in rows] for h in heads]


def _printable(text: str) -> str:
    """The text with what moves a cursor, colours a terminal or breaks a document written as an escape."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def _width(text: str) -> int:
    """How many columns of a terminal the text takes: East Asian letters two, marks on others none."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _filled(text: str, width: int) -> str:
    """The text with spaces behind it."""
    return text + " " * (width - _width(text))


def _shade(weight: float, shades: str) -> str:
    """The square of a weight."""
    if math.isnan(weight):
        return "?"
    return shades[max(0, min(int(weight * len(shades)), len(shades) - 1))]


def _square(x: int, y: int, weight: float, label: str) -> str:
    """A square of an SVG, with the tokens and the weight to point at."""
    colour = "#c00" if math.isnan(weight) else "#124"
    opacity = 1.0 if math.isnan(weight) else max(0.0, min(weight, 1.0))
    return (
        f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" stroke="#999" fill="{colour}" '
        f'fill-opacity="{opacity:.4g}"><title>{markup.escape(f"{label}: {weight:.4g}")}</title></rect>'
    )
