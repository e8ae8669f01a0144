"""Kernels in tiles of queries and keys: what is decided for a tile by one of its queries, and where loops end."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.blocks.edges import Edges, begin_of, end_of, family, tiled
from conformance.defects.blocks.tile import Tile, full
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.vectors.case import Array

OPEN = 10**9


Rule = Callable[[Tile, Array], Any]
"""A tile, what a rule shows, [..., q_len, kv_len] -> what is shown instead."""
Causal = Callable[[Tile, Array, Any], Any]
"""A tile, what causality shows, places -> what is shown instead."""
Window = Callable[[Tile, Array, Array, Any, Any], Any]
"""A tile, what the left end and the right end show, places of the two ends -> what is shown instead."""


def _mask(change: Rule) -> Callable[[int, int], Change]:
    return lambda m, n: {
        "by_mask": lambda c: None if c.mask is None else change(Tile(c, m, n), full(c, c.mask))
    }


def _causal(change: Causal) -> Callable[[int, int], Change]:
    return lambda m, n: {
        "by_causal": lambda c, place: (
            change(Tile(c, m, n), full(c, c.columns <= place), place) if c.is_causal else None
        )
    }


def ends(c: Call, place: Any) -> tuple[Any, Any]:
    """The places where the window begins and ends."""
    left, right = (OPEN if side is None else side for side in c.window)
    return place - left, place + right


def _window(change: Window) -> Callable[[int, int], Change]:
    def by_window(c: Call, place: Any, m: int, n: int) -> Any:
        if c.window is None:
            return None
        a, b = ends(c, place)
        return change(Tile(c, m, n), full(c, c.columns >= a), full(c, c.columns <= b), a, b)

    return lambda m, n: {"by_window": lambda c, place: by_window(c, place, m, n)}


def _by_rows(change: Callable[[Array, Array, Any, Any, Array, Array], Any]) -> Callable[[Edges], Change]:
    """A window for blocks of queries: keys, places of both ends, first and last query of each -> bool."""

    def by_window(c: Call, e: Edges, place: Any) -> Any:
        if c.window is None:
            return None
        rows = np.arange(c.q_len)
        first = begin_of(e(c.q_len), rows)
        last = end_of(e(c.q_len), c.q_len, rows) - 1
        return change(c.columns, rows, *ends(c, place), first, last)

    return lambda e: {"by_window": lambda c, place: by_window(c, e, place)}


def _at(x: Any, rows: Array) -> Any:
    return np.take(x, rows, axis=-2)


def _last_place(e: Edges) -> Change:
    def by_causal(c: Call, place: Any) -> Any:
        if not c.is_causal:
            return None
        last = end_of(e(c.q_len), c.q_len, np.arange(c.q_len)) - 1
        return c.columns <= _at(place, last)

    return {"by_causal": by_causal}


CAUSAL, WINDOW, MASK = ("is_causal",), ("window",), ("mask",)

RULES: tuple[
    tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[int, int], Change], tuple[int, int]], ...
] = (
    ("causal-loop-ends-at-first-query",
     "Under causality a block of queries reads the blocks of keys that its first one needs.", ("MASK-6",), CAUSAL,
     _causal(lambda t, x, p: x & (t.begin <= t.above(p))), (4, 4)),
    ("causal-loop-ends-before-diagonal",
     "Under causality a block of queries reads the blocks of keys that begin before its first query.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: x & (t.begin < t.above(p))), (4, 4)),
    ("causal-loop-end-rounded-down",
     "Under causality the last block of keys that a block of queries needs is lost: its number is rounded down.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: x & (t.begin + t.width <= t.below(p) + 1)), (4, 4)),
    ("causal-loop-ends-one-key-early",
     "Under causality a block of queries loses the block of keys that begins at the place of its last query.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: x & (t.begin < t.below(p))), (4, 2)),
    ("causal-loop-counts-tiles-alike",
     "Under causality block n of queries reads the blocks of keys up to number n, whatever their sizes and q_offset.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: x & (t.column <= t.row)), (4, 2)),
    ("causal-tile-open-by-last-query",
     "A tile is not masked by causality where its last query sees all of it: it is the first that decides.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: x | t.every(t.below(x))), (4, 2)),
    ("causal-tile-open-by-first-key",
     "A tile is not masked by causality where its first key lies before its first query: the last key decides.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: x | (t.begin < t.above(p))), (2, 4)),
    ("causal-tile-open-without-offset",
     "Which tiles need no causal mask is decided without q_offset.", ("MASK-6", "MASK-8"), ("is_causal", "q_offset"),
     _causal(lambda t, x, p: x | (t.end <= t.first + 1)), (4, 4)),
    ("causal-tile-on-diagonal-only",
     "Only the tile that has one number in queries and in keys is masked by causality.", ("MASK-6",), CAUSAL,
     _causal(lambda t, x, p: np.where(t.row == t.column, x, t.begin <= t.below(p))), (4, 2)),
    ("causal-tile-last-only",
     "Causality is checked only in the last block of keys that a block of queries reads.", ("MASK-6",), CAUSAL,
     _causal(lambda t, x, p: x | (t.column < np.minimum(t.below(p), t.c.kv_len - 1) // t.width)), (4, 2)),
    ("causal-by-whole-tiles", "A tile of queries and keys that causality touches is visible as a whole.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: t.begin <= t.below(p)), (4, 2)),
    ("causal-by-corner-of-tile", "A whole tile is visible where its first query sees its first key, or hidden.",
     ("MASK-6",), CAUSAL, _causal(lambda t, x, p: t.begin <= t.above(p)), (4, 2)),
    ("window-tiles-of-first-query", "A block of queries reads only the blocks of keys in the window of its first one.",
     ("MASK-10",), WINDOW, _window(lambda t, x, y, a, b: x & y & t.some(t.above(x & y))), (4, 2)),
    ("window-tiles-of-last-query", "A block of queries reads only the blocks of keys in the window of its last one.",
     ("MASK-10",), WINDOW, _window(lambda t, x, y, a, b: x & y & t.some(t.below(x & y))), (4, 2)),
    ("window-loop-ends-without-offset", "The loop over the blocks of keys in the window ends without q_offset.",
     ("MASK-10", "MASK-8"), ("window", "q_offset"),
     _window(lambda t, x, y, a, b: x & y & (t.begin <= t.last + (
         OPEN if t.c.window[1] is None else t.c.window[1]))), (2, 2)),
    ("window-loop-start-rounded-up", "The first block of keys in the window of a block of queries is rounded up.",
     ("MASK-10",), WINDOW, _window(lambda t, x, y, a, b: x & y & ((t.begin >= t.above(a)) | (t.begin == 0))), (4, 4)),
    ("window-left-open-by-first-query",
     "A tile is not masked at the left of the window where its first query needs none: it is the last that decides.",
     ("MASK-10",), WINDOW, _window(lambda t, x, y, a, b: y & (x | (t.begin >= t.above(a)))), (4, 2)),
    ("window-right-open-by-last-query",
     "A tile is not masked at the right of the window where its last query needs none: it is the first that decides.",
     ("MASK-10",), WINDOW, _window(lambda t, x, y, a, b: x & (y | (t.end <= t.below(b) + 1))), (4, 2)),
    ("window-left-in-first-tile-only", "The left of the window is masked only in the first block of keys that is read.",
     ("MASK-10",), WINDOW,
     _window(lambda t, x, y, a, b: y & (x | (t.column > np.maximum(t.above(a), 0) // t.width))), (4, 2)),
    ("window-right-in-last-tile-only", "The right of the window is masked only in the last block of keys that is read.",
     ("MASK-10",), WINDOW,
     _window(lambda t, x, y, a, b: x & (y | (t.column < np.minimum(t.below(b), t.c.kv_len - 1) // t.width))), (4, 2)),
    ("window-by-whole-tiles", "A tile of queries and keys that the window touches is visible as a whole.",
     ("MASK-10",), WINDOW, _window(lambda t, x, y, a, b: t.touched(x & y)), (4, 2)),
    ("mask-tile-open-by-first-query", "A tile is not masked where the mask shows all of it to its first query.",
     ("MASK-1",), MASK, _mask(lambda t, x: x | t.every(t.above(x))), (4, 2)),
    ("mask-tile-skipped-by-first-query", "A tile is skipped where the mask shows none of it to its first query.",
     ("MASK-1",), MASK, _mask(lambda t, x: x & t.some(t.above(x))), (4, 2)),
    ("mask-by-whole-tiles", "A tile of queries and keys of which the mask shows anything is visible as a whole.",
     ("MASK-1",), MASK, _mask(lambda t, x: t.touched(x)), (4, 2)),
    ("mask-by-corner-of-tile", "The mask is read at the first query and key of a tile, and serves all of it.",
     ("MASK-1",), MASK, _mask(lambda t, x: t.above(np.take(x, t.begin, axis=-1))), (4, 2)),
)  # fmt: skip

ROWS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Edges], Change]], ...] = (
    ("causal-end-of-last-query", "All of a block of queries see up to the place of its last one.", ("MASK-6",), CAUSAL,
     _last_place),
    ("window-left-of-first-query", "The left end of the window is that of the first query of a block of queries.",
     ("MASK-10",), WINDOW, _by_rows(lambda j, i, a, b, first, last: (j >= _at(a, first)) & (j <= b))),
    ("window-left-of-last-query", "The left end of the window is that of the last query of a block of queries.",
     ("MASK-10",), WINDOW, _by_rows(lambda j, i, a, b, first, last: (j >= _at(a, last)) & (j <= b))),
    ("window-right-of-first-query", "The right end of the window is that of the first query of a block of queries.",
     ("MASK-10",), WINDOW, _by_rows(lambda j, i, a, b, first, last: (j >= a) & (j <= _at(b, first)))),
    ("window-right-of-last-query", "The right end of the window is that of the last query of a block of queries.",
     ("MASK-10",), WINDOW, _by_rows(lambda j, i, a, b, first, last: (j >= a) & (j <= _at(b, last)))),
    ("window-of-block-of-queries",
     "Queries of a block see from the left end of the first to the right end of the last.",
     ("MASK-10",), WINDOW, _by_rows(lambda j, i, a, b, first, last: (j >= _at(a, first)) & (j <= _at(b, last)))),
)  # fmt: skip

DEFECTS = (
    *(
        Defect(name, sentence, violates, features=features, **tiled(make, *tile))
        for name, sentence, violates, features, make, tile in RULES
    ),
    *(
        Defect(name, sentence, violates, features=features, **family(make, at=4, reach="q_len"))
        for name, sentence, violates, features, make in ROWS
    ),
)
