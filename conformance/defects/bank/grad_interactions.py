"""Gradients that go wrong only beside something else: options in pairs, edges of tiles, shared biases, digits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.defects.backward import less_lse, to_shape
from conformance.defects.bank.grad_reductions import narrow_sum
from conformance.defects.bank.interactions import (
    IN_RANGE,
    NO_PEAK,
    OF_TILES,
    apart,
    free,
    given,
    in_dtype,
    left_edge,
    places,
    read_bias,
    right_edge,
    tile,
)
from conformance.defects.bank.mutators import after, back, dropped, only
from conformance.defects.call import Call
from conformance.defects.defect import HALF, NARROW, Change, Defect, at
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

When = Callable[[Call], Any]


def _skipped(skip: When) -> Change:
    """Tiles that are left out on the way back; the lse and Delta are as they should be."""

    def kept(c: Call, x: Array) -> Array:
        return np.where(skip(c), c.wide(0), x)

    return {
        **after("grad_logits", kept),
        "grad_value": lambda c, weights, gradient: R.grad_value(c, kept(c, weights), gradient),
    }


def _bare(when: When, c: Call) -> bool:
    """Whether a condition holds without bias and softcap."""
    return free(c, "softcap", "attn_bias") and bool(when(c))


def _causal_edge(c: Call) -> Any:
    return c.is_causal and tile(c).below(places(c, np.max)) <= tile(c).begin


def _of_first_offset(c: Call) -> Any:
    """Tiles behind the last query, whose place is counted by the offset of the first batch entry."""
    return c.is_causal and tile(c).begin > tile(c).below(places(c, lambda offsets: np.ravel(offsets)[0]))


def _shares(c: Call, *axes: int) -> bool:
    """Whether a bias of full rank is shared along axes."""
    shape = c.attn_bias.shape
    return len(shape) > 3 and all(shape[axis] == 1 for axis in axes)


def _repeated(c: Call, x: Array) -> Array:
    """Flat batch entries, of which every n-th has one bias, whichever axis of the batch shares it."""
    shape = c.attn_bias.shape
    count = int(np.prod(shape[:-3]))
    if not count:
        return np.asarray(R.grad_bias(c, x))
    summed = x.reshape(-1, count, *x.shape[-3:]).sum(axis=0)
    return to_shape(summed, (count, *shape[-3:])).reshape(shape)


def _one_by_one(c: Call, x: Array) -> Any:
    return R.grad_bias(c, narrow_sum(x, 0, c.dtype)[None])


def _sink_apart(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
    """The weight as exp of the sink below zero, times exp of what is left: the one or the other is no number."""
    some, sinks = np.isfinite(lse), c.widen(c.sinks)[:, None]
    delta = np.where(visible.any(axis=-1, keepdims=True), delta, less_lse(c, np.zeros_like(delta)))
    weight = np.exp(np.minimum(sinks, 0)) * np.exp(np.maximum(sinks, 0) - np.where(some, lse, c.wide(0)))
    return -(np.where(some, weight, c.wide(0)) * delta[..., 0]).sum(axis=(*range(len(c.batch)), -1))


def _sink_of_keys(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
    """The sink's weight is divided by what the keys alone add up to."""
    left = np.log1p(-np.exp(c.widen(c.sinks)[:, None] - lse))
    return R.grad_sinks(c, lse + left, delta, visible)


def _tokens_by_new_keys(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
    """Tokens behind the length are cleared as if the length did not count the past."""
    if name != "query":
        there = np.arange(x.shape[-2])[:, None] < c.kv_lengths[..., None, None]
        x = np.where(there, c.widen(getattr(c, name)), x)
    return R.grad_projection(c, name, x, gradient, weight, bias)


def _b_o_of_lengths(c: Call, found: dict[str, Array]) -> dict[str, Array]:
    rows = c.widen(c.grad_output) * (c.kv_lengths > 0)[..., None, None]
    return found if c.b_o is None else {**found, "b_o": rows.sum(axis=tuple(range(rows.ndim - 1)))}


NO_BIAS: Change = {"accept": lambda c: replace(c, attn_bias=np.zeros_like(c.attn_bias))}

PAIRS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], When, Change], ...] = (
    ("grad-bias-dropped-beside-lengths",
     "On the way back the bias is ignored beside kv_lengths, where no mask is given.", ("GRAD-1", "ATT-7"),
     ("attn_bias", "kv_lengths"), lambda c: given(c, "attn_bias", "kv_lengths") and free(c, "mask"), NO_BIAS),
    ("grad-bias-dropped-beside-window",
     "On the way back the bias is ignored beside a window, where no mask is given.", ("GRAD-1", "ATT-7"),
     ("attn_bias", "window"), lambda c: given(c, "attn_bias", "window") and free(c, "mask"), NO_BIAS),
    ("grad-window-left-open-beside-lengths",
     "On the way back a window is open to the left beside kv_lengths, where no mask is given.",
     ("GRAD-3", "MASK-9"), ("window", "kv_lengths"),
     lambda c: given(c, "window", "kv_lengths") and free(c, "mask"),
     {"accept": lambda c: replace(c, window=(None, c.window[1]))}),
    ("grad-single-query-not-causal", "On the way back a single query sees every key, whatever is_causal says.",
     ("GRAD-3", "MASK-6"), ("is_causal",), lambda c: c.q_len == 1, dropped("is_causal")),
)  # fmt: skip

BARE = "neither bias nor softcap"
SCALED: tuple[tuple[str, str, tuple[str, ...], When], ...] = (
    ("window", f"a window, where {BARE} nor mask nor kv_lengths are given", ("window",),
     lambda c: given(c, "window") and free(c, "mask", "kv_lengths")),
    ("lengths", f"kv_lengths, where {BARE} nor mask is given", ("kv_lengths",),
     lambda c: given(c, "kv_lengths") and free(c, "mask")),
    ("groups", f"groups, where {BARE} nor mask is given", ("gqa",), lambda c: c.heads > c.kv_heads and free(c, "mask")),
    ("causal", f"is_causal, where {BARE} nor mask is given", ("is_causal",), lambda c: c.is_causal and free(c, "mask")),
    ("mask", f"a mask, where {BARE} is given", ("mask",), lambda c: given(c, "mask")),
)  # fmt: skip
"""What a scale stands beside, with little else."""

PLACES: tuple[tuple[str, str, tuple[str, ...], When], ...] = (
    ("negative-scale", "where the scale is negative", ("scale",), lambda c: given(c, "scale") and c.scale < 0),
    ("two-batch-axes", "where there are two batch axes", (), lambda c: len(c.batch) > 1),
    ("no-batch-axis", "where there is no batch axis", (), lambda c: not c.batch),
    ("offsets", "where batch entries have different offsets", ("q_offset",), apart),
    ("single-query", "where there is a single query", (), lambda c: c.q_len == 1),
)  # fmt: skip
"""What a softcap and sinks stand beside."""

SHARED: tuple[tuple[str, str, When, Callable[[Call, Array], Any]], ...] = (
    ("grad-bias-of-keys-from-first-head",
     "The gradient of a bias that heads and queries share, but not the batch, is the first head's times their number.",
     lambda c: _shares(c, -3, -2) and c.attn_bias.shape[0] != 1,
     lambda c, x: R.grad_bias(c, x[..., :1, :, :] * c.wide(c.heads))),
    ("grad-bias-of-queries-from-first-head",
     "The gradient of a bias that heads and keys share is that of the first head.",
     lambda c: _shares(c, -3, -1), lambda c, x: R.grad_bias(c, x[..., :1, :, :])),
    ("grad-bias-of-one-of-two-batch-axes-repeated",
     "The gradient of a bias that one of several batch axes shares is summed as if entries took turns.",
     lambda c: len(c.attn_bias.shape) > 4, _repeated),
)  # fmt: skip

DEFECTS = (
    *(Defect(f"grad-scale-dropped-beside-{label}", f"On the way back the scale is ignored beside {said}.",
             ("GRAD-1", "ATT-4"), back(only(dropped("scale"), partial(_bare, when))),
             features=("scale", *features))
      for label, said, features, when in SCALED),
    *(Defect(name, sentence, violates, back(only(change, when)), features=features)
      for name, sentence, violates, features, when, change in PAIRS),
    *(Defect(f"grad-softcap-missing-{label}", f"The derivative of the softcap is left out {said}.",
             ("GRAD-7",), only({"slope": lambda c, x: c.wide(1)}, when), features=("softcap", *features))
      for label, said, features, when in PLACES),
    *(Defect(f"grad-sinks-of-keys-sum-{label}",
             f"In its own gradient the sink's weight lacks the sink in the denominator {said}.", ("GRAD-8",),
             only({"grad_sinks": _sink_of_keys}, when), features=("sinks", *features))
      for label, said, features, when in PLACES),
    *(Defect(name, sentence, ("GRAD-5",), only({"grad_bias": change}, when),
             features=("attn_bias", "broadcast"))
      for name, sentence, when, change in SHARED),
    Defect("grad-bias-narrow-sum-of-entries",
           "The gradient of a bias that the batch shares is summed over it in the dtype of the call.",
           ("GRAD-5", "GRAD-12"), only({"grad_bias": _one_by_one}, lambda c: _shares(c, 0)),
           features=("attn_bias", "broadcast"), unobservable=NARROW),
    Defect("grad-window-left-tile-skipped-one-early",
           "On the way back tiles are skipped whose last key is the first in the window of their first query.",
           ("GRAD-1", "GRAD-3"), _skipped(left_edge), features=("window",), detail=OF_TILES),
    Defect("grad-window-right-tile-skipped-one-early",
           "On the way back tiles are skipped whose first key is the last in the window of their last query.",
           ("GRAD-1", "GRAD-3"), _skipped(right_edge), features=("window",), detail=OF_TILES),
    Defect("grad-causal-tile-skipped-one-early",
           "On the way back tiles are skipped whose first key lies at the place of their last query.",
           ("GRAD-1", "GRAD-3"), _skipped(_causal_edge), features=("is_causal",), detail=OF_TILES),
    Defect("grad-causal-tile-skipped-by-first-offset",
           "On the way back causality skips tiles by the offset of the first batch entry.",
           ("GRAD-3", "MASK-8"), _skipped(_of_first_offset), features=("is_causal", "q_offset"), detail=OF_TILES),
    Defect("grad-products-below-1e-8-dropped", "Entries of dP below 1e-8 are taken for zero.", ("GRAD-1", "NUM-1"),
           after("products", lambda c, x: np.where(np.abs(x) < 1e-8, c.wide(0), x)),
           unobservable=at("float16", "it holds no gradients so small")),
    Defect("grad-without-maximum-beside-softcap",
           "On the way back no maximum is subtracted where a softcap bounds the logits, but no bias or sink is given.",
           ("GRAD-7", "GRAD-15"),
           back(only(NO_PEAK, lambda c: given(c, "softcap") and free(c, "attn_bias", "sinks"))),
           features=("softcap",), unobservable=IN_RANGE),
    Defect("grad-sinks-exponential-of-sink-alone",
           "In its own gradient a negative sink is exponentiated alone, and the rest overflows far below zero.",
           ("GRAD-8", "GRAD-15"), {"grad_sinks": _sink_apart}, features=("sinks",), unobservable=IN_RANGE),
    Defect("grad-bias-rounded-to-dtype-of-call",
           "On the way back a bias in float32 is rounded to the dtype of the call.",
           ("GRAD-1", "DTYPE-3"), back(read_bias(lambda c, bias: bias.astype(c.dtype))),
           features=("attn_bias",), unobservable=NARROW),
    Defect("grad-scale-rounded-to-dtype-of-call", "On the way back the scale is rounded to the dtype of the call.",
           ("GRAD-1", "ATT-4"), back(in_dtype("scale")), features=("scale",), unobservable=NARROW),
    Defect("grad-softcap-rounded-to-dtype-of-call", "On the way back the softcap is rounded to the dtype of the call.",
           ("GRAD-7", "ATT-5"), back(in_dtype("softcap")), features=("softcap",), unobservable=NARROW),
    Defect("grad-scale-in-float32", "On the way back the scale is kept in float32 in a float64 call.",
           ("GRAD-1", "NUM-4"), back(in_dtype("scale", of=lambda c: np.float32)), features=("scale",),
           unobservable=at(("float32", *HALF), "float32 is what these are computed in")),
    Defect("grad-layer-tokens-cleared-without-past",
           "In the layer tokens behind the length are cleared as if it did not count the past: a NaN there stays.",
           ("GRAD-9", "MASK-12"),
           only({"grad_projection": _tokens_by_new_keys}, lambda c: c.past and given(c, "kv_lengths")),
           features=("cache", "kv_lengths", "strict_masking")),
    Defect("grad-b-o-without-entries-of-no-length",
           "Rows of batch entries with a length of zero are left out of the gradient of b_o.",
           ("GRAD-11", "GRAD-4"),
           after("grad_output_projection", _b_o_of_lengths, when=lambda c: given(c, "kv_lengths")),
           features=("kv_lengths",)),
)  # fmt: skip
