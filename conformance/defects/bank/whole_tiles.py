"""Kernels with a path of their own for whole tiles, bases that meet, and indices that are clipped."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from conformance.defects.blocks.edges import HEIGHTS, SIZES, tiled
from conformance.defects.blocks.tile import Tile, full
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

LN2 = log(2.0)
RULES = (
    ("causality", "by_causal", ("MASK-6",), ("is_causal",)),
    ("window", "by_window", ("MASK-10",), ("window",)),
    ("mask", "by_mask", ("MASK-1",), ("mask",)),
    ("lengths", "by_lengths", ("MASK-12",), ("kv_lengths",)),
)
"""What a path may leave out: in words, as a step, the requirement, the feature."""


def _lost(step: str, where: Callable[[Call, Array, Any], Any]) -> Change:
    """A rule that hides nothing at some queries and keys: c, what it shows, place -> bool, [q_len, kv_len] or one."""

    def rule(c: Call, *place: Any) -> Any:
        found = getattr(R, step)(c, *place)
        if found is None:
            return None
        shown = full(c, found)
        return shown | where(c, shown, place[0] if place else None)

    return {step: rule}


def _in_whole_tiles(step: str, cut: bool) -> Callable[[int, int], Change]:
    """In tiles that are whole; tiles of which causality or a window shows nothing are not read.

    `cut` says that the last tile ends at the place of its last query, so that it may not be whole.
    """

    def where(c: Call, shown: Array, place: Any, height: int, width: int) -> Any:
        tile = Tile(c, height, width)
        whole = (tile.last - tile.first + 1 == height) & (tile.end - tile.begin == width)
        if place is None:
            return whole
        if cut:
            rows = np.broadcast_to(place, (*np.shape(place)[:-2], c.q_len, 1))
            whole = whole & (tile.end - 1 <= tile.below(rows))
        return whole & tile.touched(shown)

    return lambda height, width: _lost(step, lambda c, x, place: where(c, x, place, height, width))


def _of_whole_tiles(step: str) -> dict[str, Any]:
    found = tiled(_in_whole_tiles(step, False))
    if step == "by_causal":
        more = tiled(_in_whole_tiles(step, True))
        every = {more["detail"]: more["change"], **more["variants"]}
        found["variants"] |= {
            f"{label}, the last of which ends at the diagonal": x for label, x in every.items()
        }
    return found


def _at_even_lengths(step: str) -> dict[str, Any]:
    """Where a block divides the keys, the queries, or both, as fields of a Defect."""
    made = {}
    for size in SIZES[4:]:
        made[f"by {size}"] = _lost(step, lambda c, x, p, n=size: c.kv_len % n == 0 and c.q_len % n == 0)  # type: ignore[misc]
        made[f"of keys by {size}"] = _lost(step, lambda c, x, p, n=size: c.kv_len % n == 0)  # type: ignore[misc]
    return varied(made, "of keys by 8")


def _sinks(factor: float) -> Change:
    return {
        "accept": lambda c: c if c.sinks is None else replace(c, sinks=c.sinks * c.sinks.dtype.type(factor))
    }


def _clipped(c: Call, x: Array) -> Any:
    return np.take(x, np.minimum(np.arange(c.heads), c.kv_heads - 1), axis=-3)


def _loop_one_short(height: int) -> Change:
    """The loop over keys ends before the place of the last query of a block."""

    def by_causal(c: Call, place: Any) -> Any:
        if not c.is_causal:
            return None
        rows = np.broadcast_to(place, (*np.shape(place)[:-2], c.q_len, 1))
        return (c.columns <= rows) & (c.columns < Tile(c, height, 1).below(rows))

    return {"by_causal": by_causal}


def _quantised(axes: tuple[int, ...] | None, *names: str) -> Change:
    """Weights of the layer in 8 bits; a step for each index along the other axes of [heads, in, width]."""

    def rounded(c: Call, w: Array) -> Array:
        wide: Array = w.astype(c.wide)
        step = np.abs(wide).max(axis=axes, keepdims=True, initial=0) / c.wide(127)
        step = np.where(step == 0, c.wide(1), step)
        return np.asarray(np.rint(wide / step) * step)

    def accept(c: Call) -> Call:
        made: dict[str, Any] = {n: rounded(c, getattr(c, n)) for n in names} if c.layer else {}
        return replace(c, **made)

    return {"accept": accept}


ALL = ("w_q", "w_k", "w_v", "w_o")
STEPS: dict[str, tuple[tuple[int, ...] | None, tuple[str, ...]]] = {
    "one step for a matrix": (None, ALL),
    "one step for a matrix, all but w_o": (None, ALL[:3]),
    "one step for a head": ((-2, -1), ALL),
    "one step for a column": ((-2,), ALL),
    "one step for a column, all but w_o": ((-2,), ALL[:3]),
    "one step for a row": ((-1,), ALL),
}

DEFECTS = (
    *(Defect(f"whole-tiles-lose-{name}",
             f"Tiles that are full of queries and keys take a path without {name}.", violates,
             features=features, **_of_whole_tiles(step))
      for name, step, violates, features in RULES),
    *(Defect(f"even-lengths-lose-{name}", f"Lengths that a block divides take a path without {name}.",
             violates, features=features, **_at_even_lengths(step))
      for name, step, violates, features in RULES),
    Defect("causal-loop-one-key-short",
           "Under causality the loop over keys ends one key early: the last query of a block does not see itself.",
           ("MASK-6",), features=("is_causal",),
           **varied({f"in blocks of {n} queries": _loop_one_short(n) for n in HEIGHTS},
                    "in blocks of 4 queries")),
    Defect("sinks-not-in-base-two",
           "The sink is taken as it is among logits that are multiplied by log2(e): it counts ln(2) times.",
           ("ATT-12",), _sinks(LN2), features=("sinks",)),
    Defect("sinks-in-base-two-twice", "The sink is multiplied by log2(e) and exponentiated to base e.",
           ("ATT-12",), _sinks(1 / LN2), features=("sinks",)),
    Defect("groups-clipped",
           "Query head h reads key head h, and those beyond the last key head read the last one.",
           ("HEAD-2",), {"repeat": _clipped}, features=("gqa",)),
    Defect("layer-weights-quantised", "The weights of your layer are rounded to 8 bits.", ("PROJ-1", "NUM-1"),
           **varied({label: _quantised(axes, *names) for label, (axes, names) in STEPS.items()},
                    "one step for a matrix")),
)  # fmt: skip
