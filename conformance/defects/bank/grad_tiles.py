"""Gradients of a kernel that goes by tiles of queries and keys: which are masked, which are skipped."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.blocks.back import (
    KEY_AND_VALUE,
    QUERY,
    SIZES,
    WHOLE,
    alone,
    anew,
    cleared,
    exponential,
    tiled,
)
from conformance.defects.blocks.tile import Tile, full
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, by_detail, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array

OPEN = 10**9
"""The distance of a side of a window that is open."""


Rule = Callable[[Tile, Array, Any], Any]
"""A tile, what the rule shows, [..., q_len, kv_len], places -> what it shows then."""


def _rule(step: str, change: Rule) -> Callable[[int, int], Change]:
    """Another rule on the way back."""

    def make(height: int, width: int) -> Change:
        def shown(s: Steps, c: Call) -> Array:
            def rule(c: Call, *place: Any) -> Any:
                found = getattr(s, step)(c, *place)
                if found is None:
                    return None
                return change(Tile(c, height, width), full(c, found), place[0] if place else None)

            changed: Change = {step: rule}
            return visibility(replace(s, **changed), c)

        return anew(shown=shown)

    return make


def _sides(c: Call) -> tuple[int, int]:
    left, right = (OPEN if side is None else side for side in c.window)
    return left, right


def _all_rules(height: int, width: int) -> Change:
    return anew(shown=lambda s, c: Tile(c, height, width).touched(visibility(s, c)))


def _part_skipped(height: int, width: int) -> Change:
    def shown(s: Steps, c: Call) -> Any:
        visible = visibility(s, c)
        return visible & ~Tile(c, height, width).touched(~visible)

    return anew(shown=shown)


def _causal_twice(height: int, width: int) -> Change:
    """Both loops read the tiles in which the diagonal lies; only one of them masks."""

    def weights(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
        found = exponential(c, logits, lse, shown)
        if not c.is_causal:
            return found
        t, place = Tile(c, height, width), R.place(c)
        cut = (t.begin <= t.below(place)) & (t.end > t.above(place) + 1)
        return found * np.where(cut, c.wide(2), c.wide(1))

    return anew(weights)


def _causal(change: Rule) -> Callable[[int, int], Change]:
    return _rule("by_causal", change)


def _window(change: Rule) -> Callable[[int, int], Change]:
    return _rule("by_window", change)


def _in_keys(make: Callable[[int, int], Change]) -> Mapping[str, Any]:
    """In all gradients, and in those of key and value only, whose loop over queries is another."""
    fields, others = tiled(make), tiled(lambda m, n: alone(make(m, n), *KEY_AND_VALUE))
    label = "gradients of key and value only"
    there = {f"{detail}, {label}": change for detail, change in by_detail(others).items()}
    return {**fields, "variants": {**fields["variants"], **there}}


CAUSAL, WINDOW = ("is_causal",), ("window",)
OFFSET = ("is_causal", "q_offset")
NOT_MASKED: tuple[tuple[str, str, tuple[str, ...], Callable[[int, int], Change]], ...] = (
    ("grad-tiles-causal-not-masked",
     "On the way back causality skips tiles, and masks nothing within a tile.",
     CAUSAL, _causal(lambda t, shown, place: t.touched(shown))),
    ("grad-tiles-window-not-masked",
     "On the way back the window skips tiles, and masks nothing within a tile.",
     WINDOW, _window(lambda t, shown, place: t.touched(shown))),
    ("grad-tiles-mask-not-applied",
     "On the way back a tile of which the mask shows anything is visible as a whole.",
     ("mask",), _rule("by_mask", lambda t, shown, place: t.touched(shown))),
    ("grad-tiles-in-part-skipped", "On the way back tiles that are visible in part are skipped.", (), _part_skipped),
    ("grad-tiles-causal-by-last-query",
     "On the way back the last query of a tile decides that causality masks nothing in it.",
     CAUSAL, _causal(lambda t, shown, place: shown | (t.end <= t.below(place) + 1))),
    ("grad-tiles-causal-by-first-key",
     "On the way back the first key of a tile decides that causality masks nothing in it.",
     CAUSAL, _causal(lambda t, shown, place: shown | (t.begin <= t.above(place)))),
    ("grad-tiles-window-by-first-query",
     "On the way back the first query of a tile decides that the window's left masks nothing.",
     WINDOW, _window(lambda t, shown, place: shown | (
         (t.begin >= t.above(place) - _sides(t.c)[0]) & (t.c.columns <= place + _sides(t.c)[1])))),
    ("grad-tiles-window-by-last-query",
     "On the way back the last query of a tile decides that the window's right masks nothing.",
     WINDOW, _window(lambda t, shown, place: shown | (
         (t.end <= t.below(place) + _sides(t.c)[1] + 1) & (t.c.columns >= place - _sides(t.c)[0])))),
    ("grad-tiles-diagonal-twice",
     "On the way back the tiles of the diagonal are added twice, by each of two loops.",
     CAUSAL, _causal_twice),
)  # fmt: skip
SKIPPED: tuple[tuple[str, str, tuple[str, ...], Callable[[int, int], Change]], ...] = (
    ("grad-tiles-causal-skipped-by-first-query",
     "On the way back tiles that the first of their queries does not see are skipped.",
     CAUSAL, _causal(lambda t, shown, place: shown & (t.begin <= t.above(place)))),
    ("grad-tiles-causal-skipped-without-offset",
     "On the way back the loop over queries begins at the key's own number: that forgets q_offset.",
     OFFSET, _causal(lambda t, shown, place: shown & (t.begin < t.first + t.height))),
    ("grad-tiles-window-skipped-by-last-query",
     "On the way back tiles whose keys the window hides from the last query are skipped.",
     WINDOW, _window(lambda t, shown, place: shown & (t.end > t.below(place) - _sides(t.c)[0]))),
    ("grad-tiles-window-skipped-without-offset",
     "On the way back the loop over queries begins where the window's right would without q_offset.",
     ("window", "q_offset"),
     _window(lambda t, shown, place: shown & (t.begin < t.first + t.height + _sides(t.c)[1]))),
)  # fmt: skip

_LENGTHS = _rule("by_lengths", lambda t, shown, place: t.touched(shown))
"""Of which queries a tile is makes no difference here."""
READ_AS_ZERO = "slots behind the length are read as zero"


def _in_one() -> Mapping[str, Any]:
    """In the gradient of the value, and in others, as fields of a Defect."""
    parts = {
        "in the gradient of the value": ("value", "w_v", "b_v"),
        "in the gradient of the query": QUERY,
        "in the gradients of key and value": KEY_AND_VALUE,
    }
    made: dict[str, Change] = {}
    for part, names in parts.items():
        fields = tiled(lambda m, n, names=names: alone(_all_rules(m, n), *names))  # type: ignore[misc]
        made |= {f"{part}, {detail}": change for detail, change in by_detail(fields).items()}
    return varied(made, next(iter(made)))


def _not_masked(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """With slots behind the length as they are, and read as zero."""
    zero = {f"{detail}, {READ_AS_ZERO}": cleared(change) for detail, change in by_detail(fields).items()}
    return {**fields, "variants": {**fields["variants"], **zero}}


DEFECTS = (
    Defect("grad-tiles-not-masked-in-one",
           "Tiles that are visible in part are not masked where one of the gradients is formed.", ("GRAD-3",),
           **_in_one()),
    Defect("grad-tiles-lengths-not-masked",
           "On the way back kv_lengths skip blocks of keys, and mask nothing within a block.", ("GRAD-3",),
           features=("kv_lengths",),
           **_not_masked(varied({f"in blocks of {n}": _LENGTHS(WHOLE, n) for n in SIZES}, "in blocks of 8"))),
    Defect("grad-tiles-not-masked",
           "Tiles that are visible in part are not masked when the weights are computed anew.", ("GRAD-3",),
           **_not_masked(tiled(_all_rules, whole=True))),
    *(Defect(name, sentence, ("GRAD-3",), features=features, **tiled(make, whole="not-masked" in name))
      for name, sentence, features, make in NOT_MASKED),
    *(Defect(name, sentence, ("GRAD-1", "GRAD-3"), features=features, **_in_keys(make))
      for name, sentence, features, make in SKIPPED),
    Defect("grad-tiles-of-256-causal-skipped",
        "On the way back a tile of 256 keys behind the first is skipped if the first of 256 queries sees none of it.",
        ("GRAD-1", "GRAD-3"),
        _causal(lambda t, shown, place: shown & ((t.begin <= t.above(place)) | (t.begin == 0)))(256, 256),
        features=CAUSAL),
)  # fmt: skip
