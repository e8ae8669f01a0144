"""The logarithm of the denominator."""

from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, dropped, output, rounded
from conformance.defects.call import Call
from conformance.defects.defect import HALF, Change, Defect, at, needing
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array


def _lse(change: Any) -> Change:
    """Another lse, the output unchanged."""
    return output(change, "lse")


def _empty(number: float) -> Change:
    return _lse(lambda c, x: np.where(np.isneginf(x), x.dtype.type(number), x))


def _without(option: str) -> Change:
    """The lse of the logits as they are without an option."""

    def finish(c: Call, output: Array, weights: Array, lse: Array, key: Array, value: Array) -> Any:
        if getattr(c, option) is not None:
            bare = dropped(option)["accept"](c)
            lse = R.attend(R, bare, R.project_query(c), R.repeat(c, key), R.repeat(c, value))[2]
        return R.finish(c, output, weights, lse, key, value)

    return {"finish": finish}


DEFECTS = needing("return_lse", (
    Defect("lse-without-maximum", "Your lse lacks the maximum that was subtracted.",
           ("ATT-14",), {"log": lambda c, total, peak, visible: R.log(c, total, 0 * peak, visible)}),
    Defect("lse-in-base-two",
           "Your lse is a logarithm to base 2: multiply it by ln 2, or say `lse_base = 2`.",
           ("ATT-14",), _lse(lambda c, x: x / x.dtype.type(np.log(2)))),
    Defect("lse-is-maximum", "Your lse is the largest logit.", ("ATT-14",),
           {"log": lambda c, total, peak, visible: R.log(c, np.ones_like(total), peak, visible)}),
    Defect("lse-of-infinite-logits",
           "The lse of a row whose visible logits are all -inf is -inf, as if the row were empty: it is NaN.",
           ("ATT-10", "MASK-15"),
           {"log": lambda c, total, peak, visible: np.where(
               np.isneginf(peak[..., 0]), peak[..., 0], R.log(c, total, peak, visible))}),
    Defect("lse-not-logarithm", "Your lse is the denominator, not its logarithm.",
           ("ATT-14",), _lse(lambda c, x: np.exp(x))),
    Defect("lse-negated", "The sign of your lse is wrong.", ("ATT-14",), _lse(lambda c, x: -x)),
    Defect("lse-of-mean", "Your lse is the logarithm of the mean, not of the sum.",
           ("ATT-14",), _lse(lambda c, x: x - x.dtype.type(np.log(max(c.kv_len, 1))))),
    Defect("lse-of-unscaled-logits", "Your lse is that of the logits before they are scaled.",
           ("ATT-14",), _lse(lambda c, x: x / x.dtype.type(R.scale(c) or 1))),
    Defect("lse-without-bias", "Your lse is that of the logits before the bias.",
           ("ATT-14", "ATT-6"), _without("attn_bias"), features=("attn_bias",)),
    Defect("lse-without-softcap", "Your lse is that of the logits before the softcap.",
           ("ATT-14", "ATT-6"), _without("softcap"), features=("softcap",)),
    Defect("lse-over-masked-keys", "Your lse counts masked keys.", ("ATT-14", "MASK-4"), _without("mask"),
           features=("mask",)),
    Defect("lse-of-empty-row-zero", "The lse of an empty row is 0: it is -inf.",
           ("MASK-16",), _empty(0.0), "torch flash attention on CPU", ("empty",)),
    Defect("lse-of-empty-row-lowest", "The lse of an empty row is the lowest finite number: it is -inf.",
           ("MASK-16", "NUM-6"), _empty(float(np.finfo(np.float32).min)), features=("empty",)),
    Defect("lse-of-empty-row-nan", "The lse of an empty row is NaN: it is -inf.",
           ("MASK-16", "NUM-6"), _empty(np.nan), features=("empty",)),
    Defect("lse-of-empty-row-plus-inf", "The lse of an empty row is +inf: it is -inf.",
           ("MASK-16", "NUM-6"), _empty(np.inf), "FlashAttention", ("empty",)),
    Defect("lse-swallows-nan", "The lse of a NaN row is -inf: it is NaN.",
           ("ATT-10", "ATT-14"), _lse(lambda c, x: np.where(np.isnan(x), x.dtype.type(-np.inf), x))),
    Defect("lse-keeps-axis", "Your lse has an axis of 1 at its end.",
           ("SHAPE-2", "ATT-14"), _lse(lambda c, x: x[..., None])),
    Defect("lse-lengths-before-heads", "Your lse has the length before the heads.",
           ("SHAPE-2", "SHAPE-1"), _lse(lambda c, x: x.swapaxes(-1, -2))),
    Defect("lse-by-key-head", "Your lse has G heads: it has H.",
           ("SHAPE-2", "ATT-14"), _lse(lambda c, x: x[..., :: c.heads // c.kv_heads, :]), features=("gqa",)),
    Defect("lse-always-float64", "Your lse is float64, whatever the operands are.", ("DTYPE-6",),
           _lse(lambda c, x: x.astype(np.float64)), unobservable={"float64": "it is right there"}),
    Defect("lse-always-float32", "Your lse is float32, in a float64 call too.",
           ("DTYPE-6", "NUM-4"), _lse(lambda c, x: x.astype(np.float32)),
           admitted=at(("float32", *HALF), "the lse may be float32 there")),
    Defect("lse-in-bfloat16", "Your lse went through bfloat16.",
           ("NUM-1", "ATT-14"), _lse(lambda c, x: rounded(x, "bfloat16")),
           admitted={"bfloat16": "the lse may be stored in the dtype of the call"}),
    Defect("lse-missing", "The lse is asked for and not returned.",
           ("SHAPE-2", "ATT-14"), after("finish", lambda c, o: {n: x for n, x in o.items() if n != "lse"})),
    Defect("lse-of-first-query", "The lse of the first query is returned for all of them.",
           ("ATT-14",), _lse(lambda c, x: x[..., :1].repeat(x.shape[-1], axis=-1))),
))  # fmt: skip
