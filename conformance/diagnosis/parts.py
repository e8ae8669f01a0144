"""A mistake that is made in a part of a call only: in one pass of a backward operation, or in some blocks of keys.

A backward kernel keeps lse and output of the way forward and computes the weights anew from the logits:
what is forgotten in one of the two places breaks the gradients, and nothing else.
A forward kernel treats its first, its last or its incomplete block in lines of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.blocks.back import delta_of_heads, exponential
from conformance.defects.blocks.edges import SIZES, Edges, of
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array

LOGITS = frozenset(
    {
        *("accept", "scale", "score", "cap", "bias", "place", "intersect"),
        *("by_mask", "by_bias", "by_causal", "by_window", "by_lengths", "by_segments"),
    }
)
"""Steps that say what the logits are, and which of them are visible."""
SHARED = LOGITS | {"repeat"}
"""Steps that both passes take."""
KEPT = frozenset({"softmax", "peak", "raised", "total", "normalise", "log", "average"})
"""Steps whose results the way forward leaves to the way back."""
BACK, FORWARD, LSE = "on the way back only", "on the way forward only", "in the lse that is kept only"


Region = Callable[[Array, int], Array]
"""Where blocks begin, number of keys -> bool for each key."""
REGIONS: Mapping[str, Region] = {
    "in the first block only": lambda begins, length: np.arange(length) < _second(begins, length),
    "behind the first block only": lambda begins, length: np.arange(length) >= _second(begins, length),
    "in the last block only": lambda begins, length: np.arange(length) >= begins[-1],
    "before the last block only": lambda begins, length: np.arange(length) < begins[-1],
}


def parts(defect: Defect) -> tuple[Defect, ...]:
    """The defect in the way back alone, and in the way forward alone, where it can be in either."""
    if callable(defect.change) or all(name.startswith("GRAD-") for name in defect.violates):
        return ()
    wrong, right = defect.change, Change()
    steps = frozenset(wrong)
    found = []
    if steps <= SHARED:
        found.append((BACK, (right, right, wrong)))
    if steps <= SHARED | KEPT and not steps <= {"log"}:
        found.append((FORWARD, (wrong, wrong, right)))
    if steps <= SHARED | KEPT and not steps <= {"normalise", "average"}:  # they leave the lse as it is
        found.append((LSE, (right, wrong, right)))
    return tuple(
        replace(
            defect,
            change={"compute_gradients": _passes(*passes)},
            detail=f"{defect.detail}, {where}".removeprefix(", "),
            violates=("GRAD-1",),
            features=tuple(name for name in defect.features if not name.startswith("return_")),
            variants={},
            variant=True,
        )
        for where, passes in found
    )


def regions(defect: Defect, longest: int) -> Iterator[Defect]:
    """The defect in some of the blocks of keys, of which none is longer; a last block counts if it is not full."""
    if callable(defect.change) or defect.variant or not frozenset(defect.change) <= LOGITS:
        return
    for size in SIZES:
        for where, region in REGIONS.items():
            if size < longest:
                yield replace(
                    defect,
                    change={"attend": _in_region(defect.change, of(size), region)},
                    detail=f"in blocks of {size}, {where}",
                    variants={},
                    variant=True,
                )


def _second(begins: Array, length: int) -> int:
    return int(begins[1]) if len(begins) > 1 else length


def _in_region(wrong: Change, edges: Edges, region: Region) -> Any:
    """Attention with the logits of two kinds of steps."""

    def attend(s: Steps, c: Call, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
        here = region(edges(c.kv_len), c.kv_len)
        logits, visible = (
            np.where(here, one, other)
            for one, other in zip(
                _logits(replace(s, **wrong), c, query, key), _logits(s, c, query, key), strict=True
            )
        )
        weights, lse = s.softmax(s, c, logits, visible)
        return s.average(c, weights, value, visible), weights, lse

    return attend


def _logits(s: Steps, c: Call, query: Array, key: Array) -> tuple[Array, Array]:
    """Logits, and which are visible."""
    c = s.accept(c)
    return s.bias(c, s.cap(c, s.score(c, query, key, s.scale(c)))), visibility(s, c)


def _passes(output: Change, kept: Change, back: Change) -> Any:
    """The gradients: what is changed in the steps of the output, of the lse that is kept, and of the way back."""

    def compute_gradients(s: Steps, c: Call) -> dict[str, Array]:
        for check in s.checks:
            check(c)
        heads, lse = _forward(replace(s, **output), c)
        if kept is not output:
            lse = _forward(replace(s, **kept), c)[1]

        less = np.where(np.isfinite(lse), lse, c.wide(0))[..., None]  # what one pass hides the other may show

        def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> tuple[Array, Array]:
            return exponential(c, logits, less, visible), lse

        again = replace(s, softmax=softmax, delta=delta_of_heads, average=lambda *_: heads, **back)
        found: dict[str, Array] = REFERENCE.compute_gradients(again, c)
        return found

    return compute_gradients


def _forward(s: Steps, c: Call) -> tuple[Array, Array]:
    """Heads and lse."""
    c = s.accept(c)
    query = s.project_query(c)
    key, value = s.join(c, s.project_key(c), s.project_value(c))
    heads, _, lse = s.attend(s, c, query, s.repeat(c, key), s.repeat(c, value))
    return heads, lse
