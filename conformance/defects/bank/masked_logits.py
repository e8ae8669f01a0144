"""Everything that is hidden, by whatever rule, given a number instead of being left out."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array


def _given(fill: Callable[[Call, Array], Any]) -> Change:
    """Hidden logits get a number, made from themselves, and then nothing is hidden any more."""

    def attend(s: Steps, c: Call, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
        logits = s.bias(c, s.cap(c, s.score(c, query, key, s.scale(c))))
        visible = visibility(s, c)
        every = np.ones_like(visible)
        weights, lse = s.softmax(s, c, np.where(visible, logits, fill(c, logits)).astype(c.wide), every)
        return weights @ value, weights, lse

    return {"attend": attend}


def _filled(number: float, lengths: bool) -> Change:
    """Hidden logits become a number; `lengths` says whether slots beyond them do as well. The lse is right."""

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        exists = np.ones_like(visible) if lengths else s.intersect(c, (s.by_lengths(c),))
        fill = c.wide(max(number, float(np.finfo(c.wide).min)))
        weights, _ = R.softmax(s, c, np.where(visible | ~exists, logits, fill), exists)
        return weights, R.softmax(s, c, logits, visible)[1]

    return {"softmax": softmax}


FILLS = {
    f"{said}, {where}": _filled(number, lengths)
    for said, number in (("the lowest of the dtype", -np.inf), ("-1e9", -1e9), ("-10000", -1e4))
    for where, lengths in (
        ("slots beyond the lengths too", True),
        ("but not slots beyond the lengths", False),
    )
}


def _lowest_added(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
    """The lowest number is added where a key is hidden: beside a negative logit that is -inf at most by rounding."""
    lowest = np.finfo(c.wide).min
    added = logits + np.where(visible, c.wide(0), lowest)
    return R.softmax(s, c, added, np.ones_like(visible))


DEFECTS = (
    Defect("hidden-less-10000",
           "10000 is subtracted from whatever is hidden: a row that may attend nothing attends everything.",
           ("MASK-3", "MASK-9"), _given(lambda c, x: x - c.wide(10000)), "hyunwoongko/transformer#40"),
    Defect("hidden-multiplied-by-zero",
           "Logits of whatever is hidden are multiplied by zero, which leaves them a weight.",
           ("MASK-1", "MASK-9"), _given(lambda c, x: x * 0)),
    Defect("hidden-finite-but-in-lse",
           "Hidden logits are set to a finite number, so that an empty row is a mean of the values; its lse is right.",
           ("MASK-3",),
           features=("empty",), **varied(FILLS, "the lowest of the dtype, slots beyond the lengths too")),
    Defect("hidden-less-lowest",
           "The lowest finite number is added to whatever is hidden: NaN comes through, and an empty row is a mean.",
           ("MASK-3", "MASK-4"), {"softmax": _lowest_added}),
)  # fmt: skip
