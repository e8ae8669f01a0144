"""A matrix as inline SVG: one path for each colour, and marks where colour alone would not tell."""

import base64
from collections.abc import Iterator
from itertools import groupby
from typing import Literal

import numpy as np
from markupsafe import Markup, escape

from conformance.telling.page.words import number
from conformance.telling.terminal import safe
from conformance.vectors.case import Array

Scale = Literal["signed", "share", "error", "flag"]

STEPS, SHARES = 5, 8
"""Colours on each side of zero, and for shares of 1."""
ERRORS = (0.0, 0.25, 0.5, 0.75, 1.0, 10.0, 1000.0)
"""Upper ends of the colours for errors; beyond 1 is beyond what is allowed."""
ALLOWED = ERRORS.index(1.0)
ODD = 99
"""The step of what is no finite number."""

MARKS = {
    "nan": "m.2 .2l.6 .6m0-.6l-.6 .6",
    "inf": "m.5 .2v.6m-.3-.3h.6",
    "neg": "m.2 .5h.6",
    "out": "m.5 .5h0",
}
"""Drawn in a cell: a cross for NaN, plus and minus for the infinities, a dot beyond what is allowed."""


def heat_map(values: Array, scale: Scale, limit: float, label: str, rows: str, columns: str) -> Markup:
    """One matrix.

    Args:
        values: [rows, columns], float64, both at least 1.
        scale: what the colours mean.
        limit: the size that has the strongest colour of a `signed` scale.
        label: what is told to those who do not see it.
        rows: the numbers of the rows: the first, or all separated by commas.
        columns: the number of the first column.
    """
    height, width = values.shape
    cell = cell_size(max(height, width))
    colours = (f'<path class="{name}" d="{d}"/>' for name, d in _strokes(values, scale, limit))
    marks = (f'<path class="mark {name}" d="{d}"/>' for name, d in _marks(values, scale))
    # Only the words come from elsewhere; all else is numbers and class names.
    return Markup(
        f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width * cell}" height="{height * cell}" '
        f'role="img" tabindex="0" aria-label="{escape(safe(label))}" data-v="{_packed(values)}" data-w="{width}" '
        f'data-y="{rows}" data-x="{columns}">{"".join(colours)}{"".join(marks)}</svg>'
    )


def cell_size(cells: int) -> int:
    """Pixels of a cell: small matrices have large ones."""
    return 16 if cells <= 8 else 11 if cells <= 16 else 7 if cells <= 32 else 5


def signed(values: Array, limit: float) -> Array:
    """Steps from -STEPS to STEPS; 0 is for zero alone."""
    with np.errstate(all="ignore"):
        share = np.clip(np.nan_to_num(values / limit if limit else values * 0), -1, 1)
    return np.where(share < 0, np.floor(share * STEPS), np.ceil(share * STEPS)).astype(int)


def shares(values: Array) -> Array:
    """Steps from 0, for zero alone, to SHARES."""
    return np.ceil(np.clip(np.nan_to_num(values), 0, 1) * SHARES).astype(int)


def errors(values: Array) -> Array:
    """Which of ERRORS is the first that is not exceeded; one more beyond the last."""
    return np.searchsorted(ERRORS, np.nan_to_num(values, nan=np.inf), side="left")


def _steps(values: Array, scale: Scale, limit: float) -> Array:
    """A whole number for each cell; 0 needs no colour of its own."""
    if scale == "error":
        return errors(values)
    if scale == "flag":
        return (values != 0).astype(int)
    steps = signed(values, limit) if scale == "signed" else shares(values)
    return np.where(np.isfinite(values), steps, ODD)


def _class(step: int, scale: Scale) -> str:
    """The CSS class of a step."""
    if step == ODD:
        return "odd"
    if scale == "signed":
        return f"{'n' if step < 0 else 'p'}{abs(step)}"
    return "on" if scale == "flag" else f"{scale[0]}{step}"


def _strokes(values: Array, scale: Scale, limit: float) -> Iterator[tuple[str, str]]:
    """CSS class and path of each colour: the cells as horizontal strokes, equal neighbours in one."""
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(_steps(values, scale, limit).tolist()):
        x = 0
        for step, cells in groupby(row):
            count = len(list(cells))
            if step:
                paths.setdefault(step, []).append(f"M{x} {y}.5h{count}")
            x += count
    return ((_class(step, scale), "".join(parts)) for step, parts in sorted(paths.items()))


def _marks(values: Array, scale: Scale) -> Iterator[tuple[str, str]]:
    """CSS class and path of each mark that occurs."""
    if scale == "error":
        found = [("out", errors(values) > ALLOWED)]
    else:
        found = [("nan", np.isnan(values)), ("inf", np.isposinf(values)), ("neg", np.isneginf(values))]
    for name, where in found:
        if where.any():
            yield name, "".join(f"M{x} {y}{MARKS[name]}" for y, x in np.argwhere(where).tolist())


def _packed(values: Array) -> str:
    """The numbers, for the script that reads them out: base64 of little-endian float32."""
    with np.errstate(over="ignore"):
        return base64.b64encode(values.astype("<f4").tobytes()).decode()


def legend() -> list[tuple[str, list[tuple[str, str]]]]:
    """What each scale means: its name, then CSS class and words of each colour."""
    ends = [number(end) for end in ERRORS]
    return [
        (
            "values",
            [(f"n{STEPS - i}", "lowest" if i == 0 else "") for i in range(STEPS)]
            + [("z", "0")]
            + [(f"p{i}", "highest" if i == STEPS else "") for i in range(1, STEPS + 1)],
        ),
        ("weights", [("z", "0"), *((f"s{i}", "1" if i == SHARES else "") for i in range(1, SHARES + 1))]),
        (
            "error ÷ tolerance",
            [("z", "0")]
            + [(f"e{i}", f"\u2264 {end}") for i, end in enumerate(ends) if i]
            + [(f"e{len(ends)}", "more, or not finite")],
        ),
        ("masks", [("z", "hidden"), ("on", "visible")]),
    ]
