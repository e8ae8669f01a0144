"""Everything that is hidden, by whatever rule, given a number instead of being left out."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import Steps
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


DEFECTS = (
    Defect(
        "hidden-less-10000",
        "10000 is subtracted from whatever is hidden: a row that may attend nothing attends everything.",
        ("MASK-3", "MASK-9"),
        _given(lambda c, x: x - c.wide(10000)),
        "hyunwoongko/transformer#40",
    ),
    Defect(
        "hidden-multiplied-by-zero",
        "Logits of whatever is hidden are multiplied by zero, which leaves them a weight.",
        ("MASK-1", "MASK-9"),
        _given(lambda c, x: x * 0),
    ),
)
