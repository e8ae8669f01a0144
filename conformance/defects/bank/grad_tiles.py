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
    Tiles,
    alone,
    anew,
    cleared,
    exponential,
    tiled,
)
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, by_detail, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array

OPEN = 10**9
"""The distance of a side of a window that is open."""


def _rule(step: str, change: Callable[[Call, Tiles, Any, Any], Any]) -> Callable[[Tiles], Change]:
    """Another rule on the way back: c, tiles, what the rule shows, place -> what it shows then."""

    def make(t: Tiles) -> Change:
        def shown(s: Steps, c: Call) -> Array:
            def rule(c: Call, *place: Any) -> Any:
                found = getattr(s, step)(c, *place)
                return None if found is None else change(c, t, found, place[0] if place else None)

            changed: Change = {step: rule}
            return visibility(replace(s, **changed), c)

        return anew(shown=shown)

    return make


def _query(c: Call, place: Any, number: Array) -> Any:
    """The place of another query than one's own."""
    return place - np.arange(c.q_len)[:, None] + number


def _sides(c: Call) -> tuple[int, int]:
    left, right = (OPEN if side is None else side for side in c.window)
    return left, right


def _all_rules(t: Tiles) -> Change:
    return anew(shown=lambda s, c: t.some(c, visibility(s, c)))


def _part_skipped(t: Tiles) -> Change:
    def shown(s: Steps, c: Call) -> Any:
        visible = visibility(s, c)
        return visible & ~t.some(c, ~visible)

    return anew(shown=shown)


def _causal_twice(t: Tiles) -> Change:
    """Both loops read the tiles in which the diagonal lies; only one of them masks."""

    def weights(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
        found = exponential(c, logits, lse, shown)
        if not c.is_causal:
            return found
        place = R.place(c)
        cut = (t.first_key(c) <= _query(c, place, t.last_query(c))) & (
            t.last_key(c) > _query(c, place, t.first_query(c))
        )
        return found * np.where(cut, c.wide(2), c.wide(1))

    return anew(weights)


def _causal(change: Callable[[Call, Tiles, Any, Any], Any]) -> Callable[[Tiles], Change]:
    return _rule("by_causal", change)


def _window(change: Callable[[Call, Tiles, Any, Any], Any]) -> Callable[[Tiles], Change]:
    return _rule("by_window", change)


def _in_keys(make: Callable[[Tiles], Change]) -> Mapping[str, Any]:
    """In all gradients, and in those of key and value only, whose loop over queries is another."""
    fields, others = tiled(make), tiled(lambda t: alone(make(t), *KEY_AND_VALUE))
    label = "gradients of key and value only"
    there = {f"{detail}, {label}": change for detail, change in by_detail(others).items()}
    return {**fields, "variants": {**fields["variants"], **there}}


CAUSAL, WINDOW = ("is_causal",), ("window",)
OFFSET = ("is_causal", "q_offset")
NOT_MASKED: tuple[tuple[str, str, tuple[str, ...], Callable[[Tiles], Change]], ...] = (
    ("grad-tiles-causal-not-masked",
     "On the way back causality skips tiles, and masks nothing within a tile.",
     CAUSAL, _causal(lambda c, t, shown, place: t.some(c, shown))),
    ("grad-tiles-window-not-masked",
     "On the way back the window skips tiles, and masks nothing within a tile.",
     WINDOW, _window(lambda c, t, shown, place: t.some(c, shown))),
    ("grad-tiles-mask-not-applied",
     "On the way back a tile of which the mask shows anything is visible as a whole.",
     ("mask",), _rule("by_mask", lambda c, t, shown, place: t.some(c, shown))),
    ("grad-tiles-in-part-skipped", "On the way back tiles that are visible in part are skipped.", (), _part_skipped),
    ("grad-tiles-causal-by-last-query",
     "On the way back the last query of a tile decides that causality masks nothing in it.",
     CAUSAL, _causal(lambda c, t, shown, place: shown | (t.last_key(c) <= _query(c, place, t.last_query(c))))),
    ("grad-tiles-causal-by-first-key",
     "On the way back the first key of a tile decides that causality masks nothing in it.",
     CAUSAL, _causal(lambda c, t, shown, place: shown | (t.first_key(c) <= _query(c, place, t.first_query(c))))),
    ("grad-tiles-window-by-first-query",
     "On the way back the first query of a tile decides that the window's left masks nothing.",
     WINDOW, _window(lambda c, t, shown, place: shown | (
         (t.first_key(c) >= _query(c, place, t.first_query(c)) - _sides(c)[0])
         & (c.columns <= place + _sides(c)[1])))),
    ("grad-tiles-window-by-last-query",
     "On the way back the last query of a tile decides that the window's right masks nothing.",
     WINDOW, _window(lambda c, t, shown, place: shown | (
         (t.last_key(c) <= _query(c, place, t.last_query(c)) + _sides(c)[1])
         & (c.columns >= place - _sides(c)[0])))),
    ("grad-tiles-diagonal-twice",
     "On the way back the tiles of the diagonal are added twice, by each of two loops.",
     CAUSAL, _causal_twice),
)  # fmt: skip
SKIPPED: tuple[tuple[str, str, tuple[str, ...], Callable[[Tiles], Change]], ...] = (
    ("grad-tiles-causal-skipped-by-first-query",
     "On the way back tiles that the first of their queries does not see are skipped.",
     CAUSAL, _causal(lambda c, t, shown, place: shown & (t.first_key(c) <= _query(c, place, t.first_query(c))))),
    ("grad-tiles-causal-skipped-without-offset",
     "On the way back the loop over queries begins at the key's own number: that forgets q_offset.",
     OFFSET, _causal(lambda c, t, shown, place: shown & (t.first_key(c) < t.first_query(c) + t.queries))),
    ("grad-tiles-window-skipped-by-last-query",
     "On the way back tiles whose keys the window hides from the last query are skipped.",
     WINDOW, _window(lambda c, t, shown, place: shown
                     & (t.last_key(c) >= _query(c, place, t.last_query(c)) - _sides(c)[0]))),
    ("grad-tiles-window-skipped-without-offset",
     "On the way back the loop over queries begins where the window's right would without q_offset.",
     ("window", "q_offset"),
     _window(lambda c, t, shown, place: shown
             & (t.first_key(c) < t.first_query(c) + t.queries + _sides(c)[1]))),
)  # fmt: skip

_LENGTHS = _rule("by_lengths", lambda c, t, shown, place: t.some(c, shown))
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
        fields = tiled(lambda t, names=names: alone(_all_rules(t), *names))  # type: ignore[misc]
        made |= {f"{part}, {detail}": change for detail, change in by_detail(fields).items()}
    return varied(made, next(iter(made)))


def _not_masked(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """With slots behind the length as they are, and read as zero."""
    zero = {f"{detail}, {READ_AS_ZERO}": cleared(change) for detail, change in by_detail(fields).items()}
    return {**fields, "variants": {**fields["variants"], **zero}}


DEFECTS = (
    Defect(
        "grad-tiles-not-masked-in-one",
        "Tiles that are visible in part are not masked where one of the gradients is formed.",
        ("GRAD-3",),
        **_in_one(),
    ),
    Defect(
        "grad-tiles-lengths-not-masked",
        "On the way back kv_lengths skip blocks of keys, and mask nothing within a block.",
        ("GRAD-3",),
        features=("kv_lengths",),
        **_not_masked(
            varied({f"in blocks of {n}": _LENGTHS(Tiles(WHOLE, n)) for n in SIZES}, "in blocks of 8")
        ),
    ),
    Defect(
        "grad-tiles-not-masked",
        "Tiles that are visible in part are not masked when the weights are computed anew.",
        ("GRAD-3",),
        **_not_masked(tiled(_all_rules, whole=True)),
    ),
    *(
        Defect(name, sentence, ("GRAD-3",), features=features, **tiled(make, whole="not-masked" in name))
        for name, sentence, features, make in NOT_MASKED
    ),
    *(
        Defect(name, sentence, ("GRAD-1", "GRAD-3"), features=features, **_in_keys(make))
        for name, sentence, features, make in SKIPPED
    ),
)
