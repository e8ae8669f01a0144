"""The cotangent of the log-sum-exp: a term that is left out, of the wrong sign or size, or not everywhere."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped, rounded
from conformance.defects.blocks.back import KEY_AND_VALUE, QUERY, alone
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

_RULE = ("GRAD-16",)
LN2 = float(np.log(2.0))


def _other(change: Callable[[Call, Array], Any]) -> Change:
    """Another cotangent: c, [..., H, q_len, 1] -> the same."""
    return {
        "less_lse": lambda c, delta: (
            delta if c.grad_lse is None else delta - change(c, c.widen(c.grad_lse)[..., None])
        )
    }


def _times(factor: Callable[[Call], float]) -> Change:
    return _other(lambda c, x: x * c.wide(factor(c)))


def _without(when: Callable[[Call], Any]) -> Change:
    return dropped("grad_lse", when=lambda c: c.grad_lse is not None and when(c))


def _weights(change: Callable[[Call, Array, Array], Any]) -> Change:
    """Other weights for the cotangent: c, weights, visible -> weights."""

    def grad_logits(c: Call, weights: Array, products: Array, delta: Array, visible: Array) -> Any:
        found = R.grad_logits(c, weights, products, delta, visible)
        if c.grad_lse is None:
            return found
        return found + (change(c, weights, visible) - weights) * c.widen(c.grad_lse)[..., None]

    return {"grad_logits": grad_logits}


def _sinks(factor: float) -> Change:
    """The cotangent so many times in the gradient of the sinks."""

    def grad_sinks(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
        if c.grad_lse is None:
            return R.grad_sinks(c, lse, delta, visible)
        more = c.widen(c.grad_lse)[..., None] * c.wide(1 - factor)
        return R.grad_sinks(c, np.where(visible.any(axis=-1), lse, c.wide(-np.inf)), delta + more, visible)

    return {"grad_sinks": grad_sinks}


def _lost_in_empty_rows(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
    return R.grad_sinks(c, np.where(visible.any(axis=-1), lse, c.wide(-np.inf)), delta, visible)


def _per_visible(c: Call, weights: Array, visible: Array) -> Array:
    count = np.maximum(visible.sum(axis=-1, keepdims=True), 1).astype(c.wide)
    return visible.astype(c.wide) / count


def _without_sink(c: Call, weights: Array, visible: Array) -> Array:
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, c.wide(1), total)


def _first(axis: int) -> Callable[[Call, Array], Array]:
    def change(c: Call, x: Array) -> Array:
        return np.take(x, [0], axis) if x.ndim >= -axis and x.shape[axis] else x

    return change


def _by_key_head(c: Call, x: Array) -> Array:
    each = c.heads // c.kv_heads
    return np.repeat(x[..., ::each, :, :], each, axis=-3)


DEFECTS = needing("grad_lse", (
    Defect("grad-lse-ignored", "grad_lse is ignored.", _RULE, dropped("grad_lse"), "FlashAttention 2"),
    Defect("grad-lse-added-to-delta", "grad_lse is added to Delta: it has to be taken from it.",
           _RULE, _times(lambda c: -1.0)),
    Defect("grad-lse-twice", "grad_lse is counted twice.", _RULE, _times(lambda c: 2.0)),
    Defect("grad-lse-of-base-two",
           "grad_lse is taken for that of a logarithm to base 2, and divided by ln 2.",
           _RULE, _times(lambda c: 1 / LN2)),
    Defect("grad-lse-times-ln-two", "grad_lse is multiplied by ln 2.", _RULE, _times(lambda c: LN2)),
    Defect("grad-lse-scaled-twice",
           "grad_lse is multiplied by the scale, which comes once more with the gradients of query and key.",
           _RULE, _times(R.scale)),
    Defect("grad-lse-over-keys", "grad_lse is shared by the visible keys alike, and not by their weights.",
           _RULE, _weights(_per_visible)),
    Defect("grad-lse-to-each-key", "grad_lse is added to the gradient of each logit without its weight.",
           _RULE, _weights(lambda c, weights, visible: visible.astype(c.wide))),
    Defect("grad-lse-without-sink",
           "The keys share grad_lse whole although there is a sink, which has its part.",
           (*_RULE, "GRAD-8"), _weights(_without_sink), features=("sinks",)),
    Defect("grad-lse-not-to-the-sink", "The gradient of the sinks leaves out grad_lse.",
           (*_RULE, "GRAD-8"), _sinks(0.0), features=("sinks",)),
    Defect("grad-lse-negated-to-the-sink", "In the gradient of the sinks grad_lse has the wrong sign.",
           (*_RULE, "GRAD-8"), _sinks(-1.0), features=("sinks",)),
    Defect("grad-lse-of-empty-row-lost",
           "In an empty row grad_lse reaches nothing, although the lse is the sink.",
           (*_RULE, "MASK-16"), {"grad_sinks": _lost_in_empty_rows}, features=("sinks", "empty")),
    Defect("grad-lse-of-first-head", "grad_lse of the first head serves all heads.",
           (*_RULE, "HEAD-1"), _other(_first(-3))),
    Defect("grad-lse-of-first-query", "grad_lse of the first query serves all of them.",
           _RULE, _other(_first(-2))),
    Defect("grad-lse-of-first-entry", "grad_lse of the first batch entry serves all.",
           _RULE, _other(_first(-4))),
    Defect("grad-lse-by-key-head", "grad_lse is read by key head: it has one for each query head.",
           (*_RULE, "HEAD-2"), _other(_by_key_head), features=("gqa",)),
    Defect("grad-lse-not-in-gradient-of-query", "The kernel of the gradient of query leaves out grad_lse.",
           _RULE, alone(dropped("grad_lse"), *QUERY)),
    Defect("grad-lse-not-in-gradient-of-key",
           "The kernel of the gradients of key and value leaves out grad_lse.",
           _RULE, alone(dropped("grad_lse"), *KEY_AND_VALUE)),
    Defect("grad-lse-not-in-gradient-of-bias", "The gradient of attn_bias leaves out grad_lse.",
           (*_RULE, "GRAD-5"), alone(dropped("grad_lse"), "attn_bias"), features=("attn_bias",)),
    Defect("grad-lse-ignored-by-the-layer", "Your layer ignores grad_lse.",
           (*_RULE, "GRAD-10"), _without(lambda c: c.layer)),
    Defect("grad-lse-dropped-beside-softcap", "grad_lse is ignored where a softcap is given.",
           (*_RULE, "GRAD-7"), _without(lambda c: c.softcap is not None), features=("softcap",)),
    Defect("grad-lse-dropped-beside-causal", "grad_lse is ignored under causality.",
           _RULE, _without(lambda c: c.is_causal), features=("is_causal",)),
    Defect("grad-lse-dropped-for-one-query", "grad_lse is ignored where there is one query.",
           _RULE, _without(lambda c: c.q_len == 1)),
    Defect("grad-lse-in-bfloat16", "grad_lse went through bfloat16.",
           (*_RULE, "NUM-1"), _other(lambda c, x: rounded(x, "bfloat16")),
           admitted={"bfloat16": "a gradient has no more bits than that"}),
))  # fmt: skip
