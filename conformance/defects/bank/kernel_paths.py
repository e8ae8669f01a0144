"""What kernels treat on a path of its own: wide heads, a past, a sink far away, logits that rise, many entries."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.interactions import free, given, read_bias
from conformance.defects.bank.mutators import only
from conformance.defects.bank.split_keys import empty_is_zero
from conformance.defects.blocks.loop import Share, split
from conformance.defects.call import Call
from conformance.defects.defect import HALF, Change, Defect, at
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import column
from conformance.defects.steps import Steps
from conformance.vectors.case import Array

TALL, NARROW = 64, 32
"""Keys of a tile of heads up to a width of 128, and of wider ones."""
BLOCK = 64
"""Keys of a block of an online softmax."""
LARGEST = 65504
"""Of float16."""


OPTIONS = ("mask", "attn_bias", "window", "kv_lengths", "sinks", "softcap", "q_segments")


def _wide(c: Call) -> bool:
    return c.d_k > 128


def _pass_of_past(c: Call, *names: str) -> bool:
    """A past that is long enough for a pass of its own, and no option but these."""
    return c.past >= BLOCK and free(c, *(name for name in OPTIONS if name not in names))


def _lse_of_groups(c: Call) -> bool:
    """More keys than a block has, grouped heads and the lse: a path of its own."""
    return bool(c.kv_len > BLOCK and c.heads > c.kv_heads and c.return_lse)


def _steps(c: Call, x: Array) -> Array:
    """A mask or bias whose pointer goes on by 64 columns while the keys go on by 32; beyond its end it is zero."""
    if x.shape[-1] == 1:
        return x
    read = c.columns // NARROW * TALL + c.columns % NARROW
    return np.where(read < c.kv_len, x[..., np.minimum(read, c.kv_len - 1)], x.dtype.type(0))


def _halves(c: Call, query: Array, key: Array, scale: Any) -> Any:
    """Products of two parts of the width, each of which is bent by the softcap."""
    parts = (slice(None, 128), slice(128, None))
    return sum(R.cap(c, R.score(c, query[..., part], key[..., part], scale)) for part in parts)


def _new_columns(c: Call, bias: Array) -> Array:
    """A bias that is read from its first column on, for the new keys alone."""
    if bias.shape[-1] == 1:
        return bias
    old = np.zeros_like(bias[..., : c.past])
    return np.concatenate([old, bias[..., : c.kv_len - c.past]], axis=-1)


def _half_of_tiles(c: Call) -> Any:
    tiles = -(-c.kv_lengths // TALL)
    return R.by_lengths(c) & (c.columns < (tiles * NARROW)[..., None, None, None])


def _sink_again(c: Call, raised: Array, peak: Array) -> Any:
    return R.total(c, raised, peak) + np.exp(column(c, c.sinks) - peak)


def _of_keys(c: Call) -> bool:
    """A padding mask, where neither window nor sinks are given: libraries that have such a mask have none of these."""
    return given(c, "mask", "kv_lengths") and c.mask.shape[-3:-1] == (1, 1) and free(c, "window", "sinks")


def _of_past(c: Call) -> Array:
    return c.columns < c.past


def _causal_among_new(c: Call, place: Array) -> Any:
    return R.by_causal(c, place) | _of_past(c)


def _left_among_new(c: Call, place: Array) -> Any:
    return R.by_window(replace(c, window=(None, c.window[1])), place) & (R.by_window(c, place) | _of_past(c))


def _right_among_new(c: Call, place: Array) -> Any:
    return R.by_window(replace(c, window=(c.window[0], None)), place) & (R.by_window(c, place) | _of_past(c))


def _merged(share: Share) -> Change:
    """The past and the new keys are attended apart."""

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        parts = split(lambda length: np.array([0, c.past]), share)
        return parts["softmax"](s, c, logits, visible)

    return {"softmax": softmax}


def _from(least: float | None) -> Share:
    """Parts that are weighed by exp(lse), less a maximum that begins at a number; less none at all if that is None."""

    def share(maxima: Array, totals: Array, counts: Array) -> Any:
        top = 0 if least is None else np.maximum(maxima.max(axis=-1, keepdims=True), least)
        held = totals * np.exp(maxima - top)
        return held / held.sum(axis=-1, keepdims=True)

    return share


def _empty_by(part: Callable[[Call], Array]) -> Change:
    """Rows that see nothing of a part of the keys are taken for empty."""

    def average(c: Call, weights: Array, value: Array, visible: Array) -> Array:
        some = (visible & part(c)).any(axis=-1, keepdims=True)
        return np.where(some, R.average(c, weights, value, visible), c.wide(0))

    return {"average": average}


def _unmerged(c: Call, weights: Array, value: Array, visible: Array) -> Array:
    found = R.average(c, weights, value, visible)
    return found if (visible & _of_past(c)).any() else np.zeros_like(found)


def _sinks_of_one_tile(c: Call) -> bool:
    return bool(given(c, "sinks") and c.return_lse and c.heads > c.kv_heads and c.kv_len <= BLOCK)


def _sinks_of_tiles(c: Call) -> bool:
    return given(c, "sinks") and c.kv_len > 4 * BLOCK


def _without_sink(c: Call, logits: Array, visible: Array) -> Any:
    return R.peak(replace(c, sinks=None), logits, visible)


def _sink_alone(c: Call, logits: Array, visible: Array) -> Any:
    return np.broadcast_to(column(c, c.sinks), (*logits.shape[:-1], 1))


def _online(rises: Callable[[Array, Array, Array], Array]) -> Change:
    """An online softmax that keeps its maximum where that rises by little.

    `rises`: the maximum that is kept, the largest of the blocks before, that of the block -> where it is raised.
    """

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        hidden = np.where(visible, logits, c.wide(-np.inf))
        top = np.full((*hidden.shape[:-1], 1), c.wide(-np.inf))
        before, raised = top, np.zeros_like(hidden)
        for begin in range(0, c.kv_len, BLOCK):
            part = (..., slice(begin, begin + BLOCK))
            own = hidden[part].max(axis=-1, keepdims=True)
            now = np.where(rises(top, before, own) | np.isneginf(top), np.maximum(own, top), top)
            safe = np.where(np.isneginf(now), c.wide(0), now)
            raised *= np.exp(top - safe)
            raised[part] = np.exp(hidden[part] - safe)
            if c.dtype == np.float16:
                raised[raised > LARGEST] = np.inf
            top, before = now, np.maximum(before, own)
        final = R.peak(c, np.where(visible, top, logits), visible)
        raised = raised * np.exp(np.where(np.isneginf(top), final, top) - final)
        total = R.total(c, raised, final)
        return R.normalise(c, raised, total, visible), R.log(c, total, final, visible)

    return {"softmax": softmax}


def _held(s: Steps, c: Call, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """The output is held in float16 until it is divided: the sum of exponentials, one of which is 1, times values."""
    heads, weights, lse = R.attend(s, c, query, key, value)
    largest = weights.max(axis=-1, keepdims=True, initial=0)
    held = heads / np.where(largest == 0, c.wide(1), largest)
    return np.where(np.abs(held) > LARGEST, np.copysign(c.wide(np.inf), held), heads), weights, lse


def _launched(c: Call, heads: Array) -> Array:
    """No more blocks than the last axis of a grid has: what lies behind is not written."""
    found = np.array(R.merge(c, heads))
    found[(1 << 16) - 1 :] = 0
    return found


OTHERS = "the vectors have calls of this size and kind in other dtypes only"
OF_BFLOAT16, OF_FLOAT16 = at(("float64", "float16"), OTHERS), at(("float64", "bfloat16"), OTHERS)
"""Where the cases are in float32 and in one more dtype."""
OVERFLOW = "exponentials are numbers in the other dtypes where those of float16 overflow"
NO_HALF = ("float64", "float32", "bfloat16")

Row = tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Call], Any], Change, dict[str, str]]
"""Id, sentence, requirements, features, where it acts, what is done there, dtypes at which it cannot be seen."""

ROWS: tuple[Row, ...] = (
    ("path-mask-of-wide-heads-steps-by-64",
     "Heads wider than 128 go by 32 keys, and the mask goes on by 64 all the same.", ("MASK-1",), ("mask",),
     lambda c: _wide(c) and given(c, "mask"), {"by_mask": lambda c: _steps(c, c.mask)}, at("float64", OTHERS)),
    ("path-bias-of-wide-heads-steps-by-64",
     "Heads wider than 128 go by 32 keys, and the bias goes on by 64 all the same.", ("ATT-7",), ("attn_bias",),
     lambda c: _wide(c) and given(c, "attn_bias"), read_bias(_steps), OF_BFLOAT16),
    ("path-bias-of-wide-heads-ignores-past",
     "Heads wider than 128 with a past read the bias from its first column on for the new keys.", ("ATT-7", "CACHE-1"),
     ("attn_bias", "cache"), lambda c: _wide(c) and c.past, read_bias(_new_columns), OF_BFLOAT16),
    ("path-cap-of-wide-heads-in-halves",
     "Heads wider than 128 are multiplied in two halves, and the softcap bends each.", ("ATT-5",), ("softcap",),
     lambda c: _wide(c) and given(c, "softcap"), {"score": _halves, "cap": lambda c, x: x}, {}),
    ("path-lengths-of-wide-heads-in-tiles-of-64",
     "Heads wider than 128 go by 32 keys, and as many tiles are read as a length has of 64.", ("MASK-12",),
     ("kv_lengths",), lambda c: _wide(c) and given(c, "kv_lengths"), {"by_lengths": _half_of_tiles}, OF_FLOAT16),
    ("path-sink-of-wide-heads-twice",
     "Heads wider than 128 are computed in two halves of the values, and the sink is added in both.", ("ATT-12",),
     ("sinks",), lambda c: _wide(c) and given(c, "sinks"), {"total": _sink_again}, OF_FLOAT16),
    ("path-lengths-replaced-by-mask-of-keys",
     "A mask that heads and queries share is taken for the padding, in place of what the lengths say.",
     ("MASK-12", "MASK-9"), ("mask", "kv_lengths", "broadcast"), _of_keys, {"by_lengths": lambda c: None}, {}),
    ("path-past-not-causal",
     "A long past has a pass of its own, where causality hides nothing: it is taken to lie before every query.",
     ("MASK-6", "CACHE-1"), ("is_causal", "cache"),
     lambda c: c.is_causal and _pass_of_past(c), {"by_causal": _causal_among_new}, OF_BFLOAT16),
    ("path-past-behind-no-window",
     "A long past has a pass of its own, where the right side of a window hides nothing.",
     ("MASK-10", "CACHE-1"), ("window", "cache"),
     lambda c: given(c, "window") and _pass_of_past(c, "window"), {"by_window": _right_among_new}, {}),
    ("path-past-shorter-than-window",
     "A long past that the left side of a window could hold is read as a whole, wherever the queries stand.",
     ("MASK-10", "CACHE-1"), ("window", "cache"),
     lambda c: given(c, "window") and _pass_of_past(c, "window") and (c.window[0] or 0) >= c.past,
     {"by_window": _left_among_new}, at(HALF, OTHERS)),
    ("path-past-outside-window-weighs-one",
     "A long past has a pass of its own, whose lse is left at 0 for the merge where a window hides all of it.",
     ("MASK-10", "CACHE-1"), ("window", "cache"),
     lambda c: given(c, "window") and _pass_of_past(c, "window"), _merged(empty_is_zero), {}),
    ("path-past-skipped-with-merge",
     "Where a window hides all of a long past, the merge is skipped with it, and the output is never written.",
     ("MASK-10", "CACHE-1"), ("window", "cache"),
     lambda c: given(c, "window") and _pass_of_past(c, "window"), {"average": _unmerged}, at(HALF, OTHERS)),
    ("path-hidden-past-empties-row",
     "A row that sees none of a long past is taken for an empty row, where a mask hides it.", ("MASK-1", "CACHE-1"),
     ("mask", "cache"), lambda c: given(c, "mask") and _pass_of_past(c, "mask"), _empty_by(_of_past), OF_BFLOAT16),
    ("path-hidden-new-keys-empty-row",
     "A row that sees none of the keys behind a long past is taken for an empty row, where a mask hides them.",
     ("MASK-1", "CACHE-1"), ("mask", "cache"), lambda c: given(c, "mask") and _pass_of_past(c, "mask"),
     _empty_by(lambda c: ~_of_past(c)), OF_BFLOAT16),
    ("path-past-merged-without-maximum",
     "The past and the new keys are merged by exp(lse), from which no maximum was taken.", ("ATT-2", "CACHE-1"),
     ("cache",), lambda c: c.past, _merged(_from(None)), OF_BFLOAT16),
    ("path-past-merged-by-maximum-from-zero",
     "The past and the new keys are merged by a maximum that begins at zero: far below that both underflow.",
     ("ATT-2", "CACHE-1"), ("cache",), lambda c: c.past, _merged(_from(0)), OF_BFLOAT16),
    ("path-sink-left-out-of-maximum-of-one-tile",
     "With groups, the lse and up to 64 keys, the maximum leaves out the sink: one far above the logits overflows.",
     ("ATT-2", "ATT-14"), ("sinks", "return_lse", "gqa"), _sinks_of_one_tile, {"peak": _without_sink}, OF_BFLOAT16),
    ("path-sink-left-out-of-maximum-of-tiles",
     "Over more than 256 keys the maximum leaves out the sink, so that one far above the logits overflows.",
     ("ATT-2", "ATT-14"), ("sinks",), _sinks_of_tiles, {"peak": _without_sink}, OF_BFLOAT16),
    ("path-sink-is-maximum-of-one-tile",
     "With groups, the lse and up to 64 keys, the sink stands for the maximum: one far below the logits overflows.",
     ("ATT-2", "ATT-12"), ("sinks", "return_lse", "gqa"), _sinks_of_one_tile, {"peak": _sink_alone}, OF_BFLOAT16),
    ("path-sink-is-maximum-of-tiles",
     "Over more than 256 keys the sink stands for the maximum, so that one far below the logits overflows.",
     ("ATT-2", "ATT-12"), ("sinks",), _sinks_of_tiles, {"peak": _sink_alone}, OF_BFLOAT16),
    ("path-maximum-raised-by-steps-alone",
     "With groups and the lse, the maximum is raised where a block lies 8 above the one before: small rises pass.",
     ("ATT-2",), ("return_lse", "gqa"), _lse_of_groups, _online(lambda top, before, own: own - before > 8),
     at(NO_HALF, OVERFLOW)),
    ("path-maximum-raised-by-large-steps-alone",
     "With groups and the lse, the maximum is raised where a block lies 24 above the one before: smaller rises pass.",
     ("ATT-2",), ("return_lse", "gqa"), _lse_of_groups, _online(lambda top, before, own: own - before > 24),
     at("float64", "exponentials of hundreds do not overflow in float64")),
    ("path-maximum-raised-too-late",
     "With groups and the lse, the maximum is raised where it rises by more than 27, and not before.",
     ("ATT-2",), ("return_lse", "gqa"), _lse_of_groups, _online(lambda top, before, own: own - top > 27),
     at(NO_HALF, OVERFLOW)),
    ("path-output-overflows-before-division",
     "With more than 512 keys the output is held in float16 until it is divided by the denominator, and overflows.",
     ("NUM-3", "ATT-1"), ("gqa",), lambda c: c.dtype == np.float16 and c.kv_len > 512, {"attend": _held},
     at(NO_HALF, "the call is not in float16")),
    ("path-entries-beyond-grid",
     "One block a batch entry is launched, and no more than 65,535: later entries are not written.",
     ("IND-3", "ATT-1"), (), lambda c: c.batch and c.batch[0] >= 1 << 16, {"merge": _launched},
     at(("float64", *HALF), OTHERS)),
)  # fmt: skip

DEFECTS = tuple(
    Defect(name, sentence, violates, only(change, when), features=features, unobservable=unseen)
    for name, sentence, violates, features, when, change, unseen in ROWS
)
