"""Keys that are attended in parts, and how the parts are merged."""

from typing import Any

import numpy as np

from conformance.defects.blocks.edges import in_parts
from conformance.defects.blocks.loop import Share, fair, largest, merged_lse, split
from conformance.defects.defect import Defect
from conformance.vectors.case import Array


def _lse(maxima: Array, totals: Array) -> Any:
    """That of each part."""
    return maxima + np.log(totals)


def _of_sum(held: Any) -> Any:
    """Shares that add up to one."""
    return held / held.sum(axis=-1, keepdims=True)


def equal(maxima: Array, totals: Array, counts: Array) -> Any:
    """As if all parts weighed the same."""
    return _of_sum(np.ones_like(totals))


def _equal_of_visible(maxima: Array, totals: Array, counts: Array) -> Any:
    return _of_sum((totals > 0).astype(totals.dtype))


def _averaged_in_turn(maxima: Array, totals: Array, counts: Array) -> Any:
    """(((a + b) / 2) + c) / 2."""
    number = len(counts)
    return np.array([0.5 ** (number - max(n, 1)) for n in range(number)], dtype=totals.dtype)


def _by_lse(maxima: Array, totals: Array, counts: Array) -> Any:
    each = np.where(totals > 0, _lse(maxima, totals), 0)
    return _of_sum(each)


def _base_two(maxima: Array, totals: Array, counts: Array) -> Any:
    each = _lse(maxima, totals)
    return _of_sum(np.exp2(each - largest(each)))


def _in_another_base(maxima: Array) -> Any:
    """Powers of e of maxima that are in units of log 2."""
    return np.exp((maxima - largest(maxima)) * np.log2(np.e).astype(maxima.dtype))


def _another_base(maxima: Array, totals: Array, counts: Array) -> Any:
    return _of_sum(totals * _in_another_base(maxima))


def _lse_in_another_base(maxima: Array, totals: Array) -> Any:
    summed = (totals * _in_another_base(maxima)).sum(axis=-1)
    return np.log(summed) + largest(maxima)[..., 0]


def _largest_only(maxima: Array, totals: Array, counts: Array) -> Any:
    each = _lse(maxima, totals)
    return np.arange(len(counts)) == each.argmax(axis=-1)[..., None]


def _empty_counts(maxima: Array, totals: Array) -> Array:
    """The lse of parts; 0 where nothing is visible."""
    return np.where(totals > 0, _lse(maxima, totals), 0)


def empty_is_zero(maxima: Array, totals: Array, counts: Array) -> Any:
    """A part of which nothing is visible has an lse of 0."""
    each = _empty_counts(maxima, totals)
    return _of_sum(np.exp(each - each.max(axis=-1, keepdims=True)))


def _lse_with_empty(maxima: Array, totals: Array) -> Any:
    return np.logaddexp.reduce(_empty_counts(maxima, totals), axis=-1)


SHARES: tuple[tuple[str, str, Share, float], ...] = (
    ("split-averaged", "Parts of the keys are attended apart and averaged, whatever their denominators.",
     equal, 0),
    ("split-averaged-if-visible",
     "Parts of the keys are attended apart and those that show anything are averaged.", _equal_of_visible, 0),
    ("split-averaged-hidden-too",
     "Parts of the keys are averaged, and one of which nothing is visible is the mean of its values.", equal,
     1),
    ("split-averaged-in-turn", "Parts of the keys are averaged two and two: the result so far with the next.",
     _averaged_in_turn, 0),
    ("split-summed", "Parts of the keys are attended apart and summed.", lambda m, t, n: np.ones_like(t), 0),
    ("split-by-denominators",
     "Parts of the keys are weighed by their denominators alone: their maxima differ and are left out.",
     lambda m, t, n: _of_sum(t), 0),
    ("split-by-denominators-hidden-too",
     "A part of which nothing is visible has exponentials of one, and parts are merged without their maxima.",
     lambda m, t, n: _of_sum(t), 1),
    ("split-by-maxima", "Parts of the keys are weighed by their maxima alone, without their denominators.",
     lambda m, t, n: _of_sum(np.exp(m - largest(m))), 0),
    ("split-by-lse", "Parts of the keys are weighed by their lse itself, not by its exponential.", _by_lse,
     0),
    ("split-by-length", "Parts of the keys are weighed by how many keys they have.",
     lambda m, t, n: _of_sum(n), 0),
    ("split-merged-in-base-two",
     "Parts of the keys are merged by powers of 2 of their lse, which is a natural logarithm.", _base_two, 0),
    ("split-not-divided",
     "Parts of the keys are merged by exp(lse - largest lse), and the sum of these weights is left out.",
     lambda m, t, n: np.exp(_lse(m, t) - largest(_lse(m, t))), 0),
    ("split-largest-only", "Of the parts of the keys the one with the largest lse is taken.", _largest_only,
     0),
)  # fmt: skip
LSES = (
    ("lse-of-last-block", "Your lse is that of the last block of keys.", lambda m, t: _lse(m, t)[..., -1]),
    ("lse-of-first-block", "Your lse is that of the first block of keys.", lambda m, t: _lse(m, t)[..., 0]),
    ("lse-largest-of-blocks", "Your lse is the largest of those of the blocks of keys.",
     lambda m, t: _lse(m, t).max(axis=-1)),
    ("lse-sum-of-blocks", "Your lse is the sum of those of the blocks.",
     lambda m, t: _lse(m, t).sum(axis=-1)),
    ("lse-mean-of-blocks", "Your lse is the mean of those of the blocks.",
     lambda m, t: _lse(m, t).mean(axis=-1)),
    ("lse-merged-in-base-two",
     "The lse of blocks of keys are merged by powers and logarithm of base 2: they are natural.",
     lambda m, t: np.logaddexp2.reduce(_lse(m, t), axis=-1)),
    ("lse-of-unscaled-blocks",
     "Your lse adds up the denominators of blocks of keys without rescaling them to one maximum.",
     lambda m, t: np.log(t.sum(axis=-1)) + largest(m)[..., 0]),
    ("lse-with-maximum-of-last-block",
     "Your lse adds the maximum of the last block of keys, not the largest of all.",
     lambda m, t: merged_lse(m, t) - largest(m)[..., 0] + np.where(np.isneginf(m), 0, m)[..., -1]),
)  # fmt: skip

DEFECTS = (
    *(
        Defect(name, sentence, ("ATT-2",), **in_parts(lambda e, s=share, n=empty: split(e, s, empty=n)))  # type: ignore[misc]
        for name, sentence, share, empty in SHARES
    ),
    *(
        Defect(
            name,
            sentence,
            ("ATT-14",),
            features=("return_lse",),
            **in_parts(lambda e, f=lse: split(e, fair, f)),  # type: ignore[misc]
        )
        for name, sentence, lse in LSES
    ),
    Defect("split-empty-part-has-lse-of-zero",
        "A part of the keys of which nothing is visible has an lse of 0, not of -inf, and takes weight in the merge.",
        ("ATT-2", "MASK-4"), **in_parts(lambda e: split(e, empty_is_zero, _lse_with_empty))),
    Defect("split-merged-in-base-e",
           "Parts of the keys have maxima in units of log 2, and are merged by exp of their difference, not by exp2.",
           ("ATT-2", "ATT-14"), **in_parts(lambda e: split(e, _another_base, _lse_in_another_base))),
    Defect("split-correct", "Parts of 16 keys are attended apart and merged as they should be.",
           ("ATT-2",), in_parts(split)["change"], equivalent="another order of the same sums"),
)  # fmt: skip
