"""Weights that are returned, and what asking for them must not change."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, dropped, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array


def _weights(change: Any) -> Change:
    """Other weights, the output unchanged."""
    return output(lambda c, x: change(c, x.astype(c.wide)).astype(x.dtype), "weights")


_ASKED = ("return_weights",)


def _packed(s: Steps, c: Call, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    heads, weights, lse = R.attend(s, c, query, key, value)
    order = np.argsort(~visibility(s, c), axis=-1, kind="stable")
    return heads, np.take_along_axis(weights, order, axis=-1), lse


DEFECTS = (
    Defect("weights-averaged-over-heads",
           "Your weights are averaged over the heads: they are wanted for each head.", ("ATT-13", "SHAPE-2"),
           _weights(lambda c, x: x.mean(axis=-3)), "torch.nn.MultiheadAttention", _ASKED),
    Defect("weights-averaged-in-place", "Every head returns the average of all heads' weights.", ("ATT-13",),
           _weights(lambda c, x: x.mean(axis=-3, keepdims=True).repeat(c.heads, axis=-3)), features=_ASKED),
    Defect("weights-of-first-head", "Every head returns the weights of the first.", ("ATT-13", "HEAD-1"),
           _weights(lambda c, x: x[..., :1, :, :].repeat(c.heads, axis=-3)), features=_ASKED),
    Defect("weights-by-key-head", "Your weights have G heads: they have H.", ("ATT-13", "SHAPE-2"),
           _weights(lambda c, x: x[..., :: c.heads // c.kv_heads, :, :]), features=("return_weights", "gqa")),
    Defect("weights-transposed", "Your weights have keys before queries.",
           ("SHAPE-2", "ATT-13"), _weights(lambda c, x: x.swapaxes(-1, -2)), features=_ASKED),
    Defect("weights-not-normalised", "The weights that you return are not divided by their sum.", ("ATT-13",),
           _weights(lambda c, x: x / np.maximum(x.max(axis=-1, keepdims=True, initial=1e-30), 1e-30)),
           features=_ASKED),
    Defect("weights-are-logits", "The weights that you return are the logits.", ("ATT-13",),
           {"finish": lambda c, o, w, lse, k, v: R.finish(c, o,
                R.bias(c, R.cap(c, R.score(c, R.project_query(c), R.repeat(c, k), R.scale(c)))), lse, k, v)},
           features=_ASKED),
    Defect("weights-not-masked", "The weights that you return are spread over masked keys.",
           ("ATT-13", "MASK-1"),
           {"finish": lambda c, o, w, lse, k, v: R.finish(c, o, np.where(visibility(R, c), w, c.wide(0.01)),
                lse, k, v)}, features=_ASKED),
    Defect("weights-of-empty-row-uniform", "The weights of an empty row are uniform: they are zero.",
           ("MASK-3", "ATT-13"),
           {"finish": lambda c, o, w, lse, k, v: R.finish(c, o,
                np.where(visibility(R, c).any(-1, keepdims=True), w, c.wide(1 / max(c.kv_len, 1))), lse, k,
                v)}, features=("return_weights", "empty")),
    Defect("weights-of-empty-row-nan", "The weights of an empty row are NaN: they are zero.",
           ("MASK-3", "NUM-6"),
           {"finish": lambda c, o, w, lse, k, v: R.finish(c, o,
                np.where(visibility(R, c).any(-1, keepdims=True), w, c.wide(np.nan)), lse, k, v)},
           "pytorch/pytorch#160064", ("return_weights", "empty")),
    Defect("weights-sum-to-one-beside-sinks",
           "The weights that you return sum to one although a sink took its share.", ("ATT-12", "ATT-13"),
           _weights(lambda c, x: x if c.sinks is None else x / x.sum(axis=-1, keepdims=True)),
           features=("return_weights", "sinks")),
    Defect("weights-with-sink-column", "Your weights have a column for the sink.", ("SHAPE-2", "ATT-12"),
           _weights(lambda c, x: x if c.sinks is None
                        else np.concatenate([x, 1 - x.sum(-1, keepdims=True)], axis=-1)),
           features=("return_weights", "sinks")),
    Defect("weights-missing", "The weights are asked for and not returned.", ("SHAPE-2", "ATT-13"),
           after("finish", lambda c, o: {n: x for n, x in o.items() if n != "weights"}),
           "keras-team/keras#19303", _ASKED),
    Defect("weights-unasked", "Weights are returned although nobody asked for them.", ("SHAPE-2",),
           {"finish": lambda c, o, w, lse, k, v: R.finish(replace(c, return_weights=True), o, w, lse, k, v)}),
    Defect("weights-dropped-out", "The weights that you return have gone through dropout.",
           ("ATT-13", "ATT-15"), _weights(lambda c, x: np.where(c.columns % 4 == 1, 0, x / 0.75)), "keras",
           _ASKED),
    Defect("weights-rounded", "Your weights are rounded to three decimals.",
           ("ATT-13", "NUM-1"), _weights(lambda c, x: np.round(x, 3)), features=_ASKED),
    Defect("mask-dropped-with-weights", "The mask is ignored where the weights are asked for.",
           ("IND-1", "MASK-1"), dropped("mask", when=lambda c: c.return_weights), "keras-team/keras#23038",
           ("return_weights", "mask")),
    Defect("output-not-scaled-with-weights", "Where the weights are asked for, the logits are not scaled.",
           ("IND-1", "ATT-3"), {"scale": lambda c: 1.0 if c.return_weights else R.scale(c)}, features=_ASKED),
    Defect("empty-row-nan-with-weights", "Where the weights are asked for, an empty row is NaN.",
           ("IND-1", "MASK-3"),
           {"average": lambda c, w, v, visible: np.where(visible.any(axis=-1, keepdims=True),
                    R.average(c, w, v, visible), c.wide(np.nan)) if c.return_weights
                else R.average(c, w, v, visible)}, "pytorch/pytorch#160064", ("return_weights", "empty")),
    Defect("output-changed-with-lse",
           "Where the lse is asked for, the output is not divided by the denominator.", ("IND-1", "ATT-1"),
           {"normalise": lambda c, e, total, v: e if c.return_lse else R.normalise(c, e, total, v)},
           features=("return_lse",)),
    Defect("mask-dropped-with-lse", "The mask is ignored where the lse is asked for.", ("IND-1", "MASK-1"),
           dropped("mask", when=lambda c: c.return_lse), features=("return_lse", "mask")),
    Defect("weights-from-other-heads-in-layer", "The weights of your layer are summed over the heads.",
           ("ATT-13", "PROJ-7"),
           output(lambda c, x: x.sum(axis=-3, keepdims=True).astype(x.dtype), "weights",
                  when=lambda c: c.layer), features=_ASKED),
    Defect("weights-packed-left",
           "The weights of the visible keys are returned side by side from the first column on, not at their keys.",
           ("ATT-13",), {"attend": _packed}, features=("return_weights", "mask")),
)  # fmt: skip
