"""Gradients: one term, one factor or one rule that is another in a part of the formula only."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.defects.bank.grad_blocks import by_block
from conformance.defects.bank.mutators import after
from conformance.defects.blocks.back import KEY_AND_VALUE, QUERY, alone, anew, exponential
from conformance.defects.blocks.edges import Edges, family
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import column
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array


def _scaled_delta(by: Callable[[Call], float]) -> Change:
    """Delta of another unit than dP; the sinks keep the right one."""
    return {
        "grad_logits": lambda c, p, products, delta, visible: R.grad_logits(
            c, p, products, delta * c.wide(by(c)), visible
        )
    }


def _scaled_products() -> Change:
    """The scale is in dP, and no longer in what follows."""
    return {
        "grad_logits": lambda c, p, products, delta, visible: R.grad_logits(
            c, p, products * c.wide(R.scale(c)), delta, visible
        ),
        "grad_query": lambda c, x, key, scale: R.grad_query(c, x, key, 1.0),
        "grad_key": lambda c, x, query, scale: R.grad_key(c, x, query, 1.0),
    }


def _slope_before_delta() -> Change:
    """The slope is a factor of dP alone."""
    kept: dict[str, Any] = {}

    def products(c: Call, g: Array, v: Array, visible: Array) -> Any:
        kept["dP"] = R.products(c, g, v, visible)
        return kept["dP"]

    def logits(c: Call, p: Array, dp: Array, delta: Array, visible: Array) -> Any:
        kept["p"], kept["delta"] = p, delta
        return R.grad_logits(c, p, dp, delta, visible)

    return {
        "products": products,
        "grad_logits": logits,
        "grad_scores": lambda c, x, slope: kept["p"] * (slope * kept["dP"] - kept["delta"]),
    }


def _slope_with_bias(c: Call, scaled: Array) -> Any:
    """1 - (logit / cap) squared, of the logit that the bias was added to."""
    if c.softcap is None:
        return R.slope(c, scaled)
    logits = R.bias(c, R.cap(c, scaled)) / c.wide(c.softcap)
    return 1 - np.where(np.isfinite(logits), logits, c.wide(0)) ** 2


def _slope_without_scale(c: Call, scaled: Array) -> Any:
    return R.slope(c, scaled / c.wide(R.scale(c) or 1))


def _sink(weight: Callable[[Call, Array, Array], Array]) -> Change:
    """Another weight of the sink: c, sink of each head, lse -> weight, where anything is visible."""

    def sinks(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
        some = visible.any(axis=-1)
        found = weight(c, c.widen(c.sinks)[:, None], np.where(some, lse, c.wide(0)))
        summed = -(np.where(some, found, c.wide(0)) * delta[..., 0]).sum(axis=-1)
        return summed.sum(axis=tuple(range(len(c.batch))))

    return {"grad_sinks": sinks}


def _share(c: Call, sink: Array, lse: Array) -> Array:
    found: Array = np.exp(sink - lse)
    return found


def _odds(c: Call, sink: Array, lse: Array) -> Array:
    """Over the lse of the keys alone."""
    share = _share(c, sink, lse)
    return share / (1 - share)


def _turned(step: str) -> Change:
    """A product with the weights, or the gradient of the logits, as it stands where it has to be transposed."""
    changes: Change = {
        "grad_value": lambda c, p, g: R.grad_value(c, p.swapaxes(-1, -2) if _square(c) else p, g),
        "grad_key": lambda c, x, query, scale: R.grad_key(
            c, x.swapaxes(-1, -2) if _square(c) else x, query, scale
        ),
        "grad_query": lambda c, x, key, scale: R.grad_query(
            c, x.swapaxes(-1, -2) if _square(c) else x, key, scale
        ),
    }
    return {step: changes[step]}


def _square(c: Call) -> bool:
    return c.q_len == c.kv_len


def _forgotten(step: str) -> Change:
    """A rule of visibility that the weights that are computed anew do without."""
    change: Change = {step: lambda c, *place: None}
    return anew(shown=lambda s, c: visibility(replace(s, **change), c))


def _without_bias(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
    if c.attn_bias is None:
        return exponential(c, logits, lse, shown)
    bias = c.widen(c.attn_bias)
    return exponential(c, logits - np.where(np.isfinite(bias), bias, c.wide(0)), lse, shown)


def _without_sinks(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
    found = exponential(c, logits, lse, shown)
    if c.sinks is None:
        return found
    some = np.isfinite(lse)
    share = np.where(some, np.exp(column(c, c.sinks) - np.where(some, lse, c.wide(0))), c.wide(0))
    return found / (1 - share)


def _in_one(change: Change, value: bool = True) -> Any:
    """In the gradient of the query, or in those of key and value, as fields of a Defect.

    `value` is whether it shows in that of the value.
    """
    variants = {
        "in the gradients of key and value only": alone(change, *KEY_AND_VALUE),
        "in the gradient of the value only": alone(change, "value", "w_v", "b_v"),
        "not in the gradient of the value": alone(change, *QUERY, "key", "w_k", "b_k"),
        "in the gradient of the key only": alone(change, "key", "w_k", "b_k"),
    }
    kept = variants if value else {"in the gradient of the key only": alone(change, "key", "w_k", "b_k")}
    return {"change": alone(change, *QUERY), "detail": "in the gradient of the query only", "variants": kept}


CAP = ("softcap",)
IN_ONE: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], Change], ...] = (
    ("grad-causal-forgotten-in-one", "Causality is forgotten where one of the gradients is formed.",
     ("GRAD-3",), ("is_causal",), _forgotten("by_causal")),
    ("grad-mask-forgotten-in-one", "The mask is forgotten where one of the gradients is formed.",
     ("GRAD-3",), ("mask",), _forgotten("by_mask")),
    ("grad-window-forgotten-in-one", "The window is forgotten where one of the gradients is formed.",
     ("GRAD-3",), ("window",), _forgotten("by_window")),
    ("grad-lengths-forgotten-in-one", "kv_lengths are forgotten where one of the gradients is formed.",
     ("GRAD-3",), ("kv_lengths",), _forgotten("by_lengths")),
    ("grad-bias-forgotten-in-one", "The bias is left out of the weights where one of the gradients is formed.",
     ("GRAD-1",), ("attn_bias",), anew(_without_bias)),
    ("grad-sinks-forgotten-in-one", "The sinks are left out of the weights where one of the gradients is formed.",
     ("GRAD-1",), ("sinks",), anew(_without_sinks)),
    ("grad-softcap-forgotten-in-one", "The softcap's derivative is forgotten where one of the gradients is formed.",
     ("GRAD-7",), ("softcap",), {"slope": lambda c, x: c.wide(1)}),
)  # fmt: skip
"""A kernel for each gradient has each rule once more."""


def _weighed(e: Edges) -> Change:
    """Parts of the query's gradient, each times the share of the part, which its weights hold already."""
    kept: dict[str, Array] = {}

    def logits(c: Call, p: Array, products: Array, delta: Array, visible: Array) -> Any:
        kept["share"] = by_block(p, e(c.kv_len), c.kv_len)
        return R.grad_logits(c, p, products, delta, visible)

    return {
        "grad_logits": logits,
        "grad_query": lambda c, x, key, scale: R.grad_query(c, x * kept["share"], key, scale),
    }


DEFECTS = (
    *(Defect(name, sentence, violates, features=features, **_in_one(change, features != CAP))
      for name, sentence, violates, features, change in IN_ONE),
    Defect("grad-delta-times-scale", "Delta is multiplied by the scale before it is subtracted from dP.",
           ("GRAD-1",), _scaled_delta(lambda c: R.scale(c)),
           detail="dP is not", variants={"dP is, and Delta is not": _scaled_products()}),
    Defect("grad-product-not-transposed",
           "A product of the gradients lacks its transposition, or has one too many, where the shapes allow it.",
           ("GRAD-1",), _turned("grad_value"), detail="P in the value's",
           variants={"dS in the key's": _turned("grad_key"),
                     "dS in the query's, which is transposed": _turned("grad_query"),
                     "P in the value's and dS in the key's": {**_turned("grad_value"), **_turned("grad_key")},
                     "dS in the key's and in the query's": {**_turned("grad_query"), **_turned("grad_key")}}),
    Defect("grad-softcap-before-delta",
           "The derivative of the softcap is a factor of dP alone: Delta is subtracted afterwards.",
           ("GRAD-7",), _slope_before_delta, features=CAP),
    Defect("grad-softcap-of-biased-logit",
           "The derivative of the softcap is taken from the logit to which the bias was added.",
           ("GRAD-7",), {"slope": _slope_with_bias}, features=("softcap", "attn_bias")),
    Defect("grad-softcap-of-unscaled-product",
           "The derivative of the softcap is taken at the product before it is scaled.",
           ("GRAD-7",), {"slope": _slope_without_scale}, features=CAP),
    Defect("grad-softcap-divided-by-cap", "The gradient is divided by the cap once more.",
           ("GRAD-7",), {"slope": lambda c, x: R.slope(c, x) / c.wide(c.softcap or 1)}, features=CAP),
    Defect("grad-sinks-of-keys-lse",
           "The weight of a sink in its gradient is exp(sink - lse) with an lse of the keys alone.",
           ("GRAD-8",), _sink(_odds), features=("sinks",)),
    Defect("grad-sinks-elementwise", "The weight of a sink in its own gradient is not exp(sink - lse).",
           ("GRAD-8",), _sink(lambda c, sink, lse: _share(c, sink, lse) * (1 - _share(c, sink, lse))),
           features=("sinks",), detail="P (1 - P)",
           variants={"exp(sink), which is not divided": _sink(lambda c, sink, lse: np.exp(sink + 0 * lse)),
                     "2 ** (sink - lse)": _sink(lambda c, sink, lse: np.exp2(sink - lse)),
                     "the sink's logit instead": _sink(lambda c, sink, lse: sink + 0 * lse)}),
    Defect("grad-sinks-batch-mean", "The gradient of the sinks is averaged over the batch.", ("GRAD-8",),
           after("grad_sinks", lambda c, x: x / c.wide(max(int(np.prod(c.batch)), 1))), features=("sinks",),
           variants={"over batch and queries": after("grad_sinks",
                         lambda c, x: x / c.wide(max(int(np.prod(c.batch)) * c.q_len, 1)))}),
    Defect("grad-sinks-of-all-heads", "The gradient of each sink is the sum over all heads.",
           ("GRAD-8",), after("grad_sinks", lambda c, x: np.full_like(x, x.sum())), features=("sinks",)),
    Defect("grad-query-parts-weighed-again",
           "Parts of the query's gradient are weighed by the shares of their keys, which their weights hold already.",
           ("GRAD-1",), **family(lambda e: partial(_weighed, e), at=4, reach="kv_len")),
)  # fmt: skip
