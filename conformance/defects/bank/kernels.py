"""Mistakes of kernels that one size, one path or one pair of options shows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.bank.split_keys import empty_is_zero, equal
from conformance.defects.blocks.edges import into
from conformance.defects.blocks.loop import split
from conformance.defects.blocks.where import Test, one_query, where, whole
from conformance.defects.call import Call
from conformance.defects.defect import HALF, Change, Defect, at
from conformance.defects.reference import REFERENCE as R
from conformance.dtypes import cast
from conformance.vectors.case import Array

LONG = 200
"""Keys of one query from which on a kernel splits them."""
PARTS = into(4)


def _unmaximised(maxima: Array, totals: Array, counts: Array) -> Any:
    with np.errstate(all="ignore"):
        held = totals * np.exp(maxima)
        return held / held.sum(axis=-1, keepdims=True)


def _split(share: Any) -> Change:
    return where(lambda c: one_query(c, LONG), split(PARTS, share))


def _hides(test: Test, shows: Callable[[Call], Any]) -> Change:
    """Keys that are not seen in calls that pass."""
    return where(test, {"intersect": lambda c, rules: R.intersect(c, (*rules, shows(c)))})


def _rows_of_parts(c: Call, weights: Array, value: Array, visible: Array) -> Array:
    """Each part's result is kept in bfloat16 until it is added."""
    total = np.zeros((*weights.shape[:-1], value.shape[-1]), c.wide)
    begins = PARTS(c.kv_len)
    for begin, end in zip(begins, [*begins[1:], c.kv_len], strict=True):
        part = R.average(c, weights[..., begin:end], value[..., begin:end, :], visible[..., begin:end])
        total += cast(part, "bfloat16").astype(c.wide)
    return total


def _sinks_of_parts(c: Call, raised: Array, peak: Array) -> Array:
    begins = len(PARTS(c.kv_len))
    sink = R.total(c, raised, peak) - raised.sum(axis=-1, keepdims=True)
    found: Array = raised.sum(axis=-1, keepdims=True) + begins * sink
    return found


def _wrapped(at: int) -> Change:
    def repeat(c: Call, x: Array) -> Array:
        whole_ = R.repeat(c, x)
        return np.take(whole_, np.arange(c.heads) % at, axis=-3)

    return {"repeat": repeat}


def _first_entry(at: int) -> Change:
    def join(c: Call, key: Array, value: Array) -> tuple[Array, Array]:
        key, value = R.join(c, key, value)
        places = np.where(np.arange(len(key)) < at, np.arange(len(key)), 0)
        return key[places], value[places]

    return where(lambda c: c.batch and c.batch[0] > at, {"join": join})


def _groups_in_blocks(c: Call, x: Array) -> Array:
    """Heads in blocks of 16, each of which reads the key head of its first."""
    group = c.heads // c.kv_heads
    return np.take(x, (np.arange(c.heads) // 16 * 16) // group, axis=-3)


def _no_bias(c: Call, x: Array) -> Array:
    return x


def _bias_of_last(c: Call, x: Array) -> Array:
    bias = np.broadcast_to(c.widen(c.attn_bias), x.shape)
    found: Array = x + np.roll(bias, 1, axis=-1)
    return found


def _bias_of_first_head(c: Call, x: Array) -> Array:
    found: Array = x + np.broadcast_to(c.widen(c.attn_bias), x.shape)[..., :1, :, :]
    return found


def _mask_of_first_head(c: Call) -> Any:
    return None if c.mask is None or c.mask.ndim == 2 else c.mask[..., :1, :, :]


def _head_by_head(c: Call) -> bool:
    """So many queries and keys that a head is computed at a time."""
    return c.q_len * c.kv_len > 1 << 17


def _lengths_plus_one(c: Call) -> Any:
    if c.kv_lengths is None:
        return None
    more = np.where(c.kv_lengths % 64 == 0, c.kv_lengths + (c.kv_lengths > 0), c.kv_lengths)
    return c.columns < more[..., None, None, None]


def _window_at_most(side: int) -> Change:
    def by_window(c: Call, place: Any) -> Any:
        if c.window is None or c.window[0] is None:
            return R.by_window(c, place)
        shown = R.by_window(c, place)
        return shown & (c.columns >= place - min(c.window[0], side))

    return {"by_window": by_window}


def _causal_one_more(c: Call, place: Any) -> Any:
    return c.columns <= place + 1 if c.is_causal else None


def _first_heads(c: Call, logits: Array) -> Array:
    """Of a bias that the heads share only the first four heads count."""
    if c.attn_bias.ndim > 2 and c.attn_bias.shape[-3] != 1:
        return R.grad_bias(c, logits)
    kept = np.array(logits)
    kept[..., 4:, :, :] = 0
    return R.grad_bias(c, kept)


def _first_tile(c: Call, logits: Array) -> Array:
    """Of a bias that the queries or heads share one tile of 64 keys is written."""
    if c.attn_bias.shape == logits.shape:
        return R.grad_bias(c, logits)
    found = np.array(R.grad_bias(c, logits))
    found[..., 64:] = 0
    return found


def _value_columns(c: Call, weights: Array, gradient: Array) -> Array:
    found = np.array(R.grad_value(c, weights, gradient))
    found[..., c.d_k :] = 0
    return found


def _output_columns(c: Call, weights: Array, value: Array, visible: Array) -> Array:
    found = np.array(R.average(c, weights, value, visible))
    found[..., 256:] = 0
    return found


def _rounded_exp(c: Call, logits: Array, visible: Array, peak: Array) -> Array:
    low = np.where(visible, logits - peak, -np.inf).astype(np.float32)
    return np.exp(low).astype(c.wide)


def _finite_hidden(value: float) -> Change:
    """A hidden logit is a finite number; rows that see nothing are right."""

    def peak(c: Call, logits: Array, visible: Array) -> Any:
        return R.peak(c, np.where(visible, logits, c.wide(value)), np.ones_like(visible))

    def raised(c: Call, logits: Array, visible: Array, peak: Array) -> Array:
        found = np.exp(np.where(visible, logits, c.wide(value)) - peak)
        return np.where(visible.any(axis=-1, keepdims=True), found, c.wide(0))

    def normalise(c: Call, raised: Array, total: Array, visible: Array) -> Any:
        some = visible.any(axis=-1, keepdims=True)
        return np.where(some, raised / np.where(some, total, 1), c.wide(0))

    def average(c: Call, weights: Array, value: Array, visible: Array) -> Array:
        return R.average(c, weights, np.where(np.isfinite(value), value, 0), visible)

    return {"peak": peak, "raised": raised, "normalise": normalise, "average": average}


def _cast_operands() -> Change:
    """Projected operands in bfloat16."""

    def low(project: Any) -> Callable[[Call], Array]:
        return lambda c: cast(project(c), "bfloat16").astype(c.wide)

    return {name: low(getattr(R, name)) for name in ("project_query", "project_key", "project_value")}


def _no_sink_in_lse(c: Call, total: Array, peak: Array, visible: Array) -> Array:
    sink = np.exp(c.widen(c.sinks)[:, None, None] - peak)
    return R.log(c, total - sink, peak, visible)


def _equal_lengths(c: Call) -> Any:
    if c.kv_lengths is None or not c.kv_lengths.size or (c.kv_lengths != c.kv_lengths.flat[0]).any():
        return R.by_lengths(c)
    return None


def _other_order(c: Call, place: Any) -> Any:
    """Offsets of two batch axes are read as those of the axes in the other order."""
    offset = np.asarray(c.q_offset)
    turned = offset.T.reshape(offset.shape)
    return R.by_window(c, place - offset[..., None, None, None] + turned[..., None, None, None])


OTHERS = "the vectors have calls of this size and kind in other dtypes only"

DEFECTS = (
    Defect("kernel-bias-of-first-head-in-long-calls",
           "In long calls, which go head by head, every head has the bias of the first one.",
           ("ATT-7", "HEAD-1"),
           where(lambda c: c.attn_bias is not None and _head_by_head(c), {"bias": _bias_of_first_head}),
           features=("attn_bias",), unobservable=at(("float64", "float16"), OTHERS)),
    Defect("kernel-mask-of-first-head-in-long-calls",
           "In long calls, which go head by head, every head has the mask of the first one.",
           ("MASK-1", "HEAD-1"), where(_head_by_head, {"by_mask": _mask_of_first_head}),
           features=("mask",), unobservable=at(("float64", "float16"), OTHERS)),
    Defect("kernel-parts-averaged",
           "With one query over many keys, four parts are averaged and not weighed by their lse.",
           ("ATT-1",), _split(equal)),
    Defect("kernel-empty-part-weighs-one",
           "With one query over many keys, a part of which nothing is visible counts with an lse of 0.",
           ("MASK-10",), _split(empty_is_zero)),
    Defect("kernel-parts-merged-without-maximum",
           "With one query over many keys, parts are merged by exp(lse), from which no maximum was taken.",
           ("ATT-2",), _split(_unmaximised),
           unobservable={"float64": "exponentials of hundreds do not overflow in float64",
                         "float16": OTHERS}),
    Defect("kernel-sink-in-every-part",
           "With one query over many keys, the sink is counted once in each of four parts.", ("ATT-12",),
           where(lambda c: c.sinks is not None and one_query(c, LONG), {"total": _sinks_of_parts}),
           features=("sinks",)),
    Defect("kernel-rest-of-parts-dropped",
           "With one query, the keys that remain when they are divided by four are not read.",
           ("ATT-1",), _hides(lambda c: one_query(c, LONG), lambda c: c.columns < c.kv_len // 4 * 4)),
    Defect("kernel-parts-in-bfloat16",
           "With one query over many keys, the results of four parts are kept in bfloat16.",
           ("NUM-1",), where(lambda c: one_query(c, LONG), {"average": _rows_of_parts}),
           unobservable=at("bfloat16", "the output of the call is no wider")),
    Defect("kernel-keys-from-4096-unread", "Keys from 4,096 on are never read.",
           ("ATT-1",), _hides(lambda c: c.kv_len > 4096, lambda c: c.columns < 4096),
           unobservable=at(("float64", "float16", "bfloat16"), OTHERS)),
    Defect("kernel-heads-from-64-wrap",
           "From 64 heads on, a head reads the keys and values of the head 64 before it.",
           ("HEAD-1",), where(lambda c: c.heads > 64, _wrapped(64))),
    Defect("kernel-heads-from-128-wrap",
           "From 128 heads on, a head reads the keys and values of the head 128 before it.",
           ("HEAD-1",), where(lambda c: c.heads > 128, _wrapped(128))),
    Defect("kernel-entries-from-32-read-the-first",
           "Batch entries from 32 on read the keys and values of the first one.",
           ("IND-3",), _first_entry(32)),
    Defect("kernel-groups-in-blocks-of-16",
           "Query heads go in blocks of 16, of which each reads one key head; groups of 24 spill over.",
           ("HEAD-2",), where(lambda c: c.heads // c.kv_heads > 16, {"repeat": _groups_in_blocks}),
           features=("gqa",)),
    Defect("kernel-width-96-scaled-as-128", "Heads of width 96 are padded to 128 and scaled by its root.",
           ("ATT-3",), where(lambda c: c.d_k == 96 and c.scale is None, {"scale": lambda c: 128**-0.5})),
    Defect("kernel-width-256-scaled-as-128",
           "Heads of width 256 are computed in two halves and scaled by the root of 128.",
           ("ATT-3",), where(lambda c: c.d_k == 256 and c.scale is None, {"scale": lambda c: 128**-0.5})),
    Defect("kernel-columns-from-256-zero", "Columns of the output from 256 on are zero.",
           ("ATT-1",), where(lambda c: c.d_v > 256, {"average": _output_columns})),
    Defect("kernel-mask-lost-on-whole-tiles",
           "Where tiles of 64 divide both lengths the mask is not looked at.",
           ("MASK-1",), where(whole, {"by_mask": lambda c: None}), features=("mask",)),
    Defect("kernel-bias-lost-on-whole-tiles", "Where tiles of 64 divide both lengths the bias is not added.",
           ("ATT-7",), where(whole, {"bias": _no_bias}), features=("attn_bias",)),
    Defect("kernel-causality-lost-on-whole-tiles",
           "Where tiles of 64 divide both lengths causality is forgotten.",
           ("MASK-6",), where(whole, {"by_causal": lambda c, place: None}), features=("is_causal",)),
    Defect("kernel-causal-one-more-on-whole-tiles",
           "Where tiles of 64 divide both lengths, causality shows one key too many.",
           ("MASK-6",), where(whole, {"by_causal": _causal_one_more}), features=("is_causal",)),
    Defect("kernel-length-of-whole-tile-one-more",
           "A length that is a multiple of 64 shows one key too many.", ("MASK-12",),
           where(lambda c: c.kv_len > 65, {"by_lengths": _lengths_plus_one}), features=("kv_lengths",)),
    Defect("kernel-bias-beside-window-one-key-off",
           "With one query, a bias beside a window is read one key further left.", ("ATT-7",),
           where(lambda c: c.window is not None and c.attn_bias is not None and one_query(c),
                 {"bias": _bias_of_last}), features=("attn_bias", "window")),
    Defect("kernel-cap-lost-beside-lengths-and-groups",
           "With one query, grouped heads and lengths, the softcap is forgotten.", ("ATT-5",),
           where(lambda c: c.kv_lengths is not None and c.heads > c.kv_heads and one_query(c),
                 {"cap": lambda c, x: x}), features=("softcap", "kv_lengths", "gqa")),
    Defect("kernel-window-of-at-most-127", "The left side of a window is cut at 127.",
           ("MASK-10",), _window_at_most(127), features=("window",)),
    Defect("kernel-window-of-at-most-255", "The left side of a window is cut at 255.",
           ("MASK-10",), _window_at_most(255), features=("window",)),
    Defect("kernel-mask-lost-beyond-140-keys", "Over more than 140 keys the mask is not looked at.",
           ("MASK-1",), where(lambda c: c.kv_len > 140, {"by_mask": lambda c: None}), features=("mask",)),
    Defect("kernel-scale-lost-beyond-140-keys", "Over more than 140 keys the given scale is not looked at.",
           ("ATT-4",), where(lambda c: c.kv_len > 140, {"scale": lambda c: c.d_k**-0.5}),
           features=("scale",)),
    Defect("kernel-cap-lost-beyond-140-keys", "Over more than 140 keys the softcap is forgotten.",
           ("ATT-5",), where(lambda c: c.kv_len > 140, {"cap": lambda c, x: x}), features=("softcap",)),
    Defect("kernel-window-lost-beyond-160-keys", "Over more than 160 keys the window is not looked at.",
           ("MASK-10",), where(lambda c: c.kv_len > 160, {"by_window": lambda c, place: None}),
           features=("window",)),
    Defect("kernel-lengths-lost-beyond-512-keys", "Over more than 512 keys lengths are not looked at.",
           ("MASK-12",), where(lambda c: c.kv_len > 512, {"by_lengths": lambda c: None}),
           features=("kv_lengths",)),
    Defect("kernel-bias-lost-beyond-512-keys", "Over more than 512 keys the bias is not added.",
           ("ATT-7",), where(lambda c: c.kv_len > 512, {"bias": _no_bias}), features=("attn_bias",)),
    Defect("kernel-lse-without-sink-beside-past", "With a past, your lse leaves the sink out.",
           ("ATT-14",), where(lambda c: c.past > 0 and c.sinks is not None, {"log": _no_sink_in_lse}),
           features=("return_lse", "sinks", "cache")),
    Defect("kernel-equal-lengths-taken-for-the-buffer",
           "Lengths that are all equal are taken for the length of the buffer.", ("MASK-12",),
           where(lambda c: c.kv_len > 64, {"by_lengths": _equal_lengths}), features=("kv_lengths",)),
    Defect("kernel-lengths-lost-beside-shared-mask",
           "Beside a mask that the batch shares, lengths are not looked at.", ("MASK-12",),
           where(lambda c: c.mask is not None and c.mask.ndim > 2 and c.mask.shape[0] == 1 < c.batch[0],
                 {"by_lengths": lambda c: None}), features=("mask", "kv_lengths", "broadcast")),
    Defect("kernel-offsets-of-two-axes-turned",
           "Offsets of two batch axes beside a window are flattened in the other order.", ("MASK-8",),
           where(lambda c: np.ndim(c.q_offset) == 2 and c.window is not None, {"by_window": _other_order}),
           features=("q_offset", "window")),
    Defect("kernel-hidden-logits-of-minus-1e5",
           "Hidden logits are set to -1e5, which wins where the visible ones are lower.",
           ("MASK-9",), _finite_hidden(-1e5)),
    Defect("kernel-exp-in-float32-beyond-64-keys",
           "Over more than 64 keys exponentials of float64 logits are float32.",
           ("NUM-4",), where(lambda c: c.kv_len > 64, {"raised": _rounded_exp}),
           unobservable=at(("float32", *HALF), "exponentials are float32 anyway")),
    Defect("kernel-operands-in-bfloat16-from-width-64",
           "Heads of width 64 and more over more than 64 keys are cast to bfloat16.",
           ("NUM-1",), where(lambda c: c.d_k >= 64 and c.kv_len > 64, _cast_operands()),
           unobservable=at("bfloat16", "the operands of the call are no wider")),
    Defect("kernel-grad-columns-of-wide-values-zero",
           "Where values are wider than keys of 64 and more, their gradient stops at the width of the keys.",
           ("GRAD-1",), where(lambda c: c.d_v > c.d_k >= 64, {"grad_value": _value_columns}),
           features=("value_dim",), unobservable=at(("float64", "float16", "bfloat16"), OTHERS)),
    Defect("kernel-grad-bias-of-four-heads",
           "The gradient of a bias that the heads share counts the first four heads only.",
           ("GRAD-5",), where(lambda c: c.kv_len > 64, {"grad_bias": _first_heads}),
           features=("attn_bias",), unobservable=at(("float64", "float16", "bfloat16"), OTHERS)),
    Defect("kernel-grad-bias-of-one-tile",
           "The gradient of a bias that broadcasts is written for the first 64 keys only.",
           ("GRAD-5",), {"grad_bias": _first_tile}, features=("attn_bias",)),
)  # fmt: skip
