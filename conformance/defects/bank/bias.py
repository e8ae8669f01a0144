"""The additive bias."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped, first, output, rounded, shown, turned, weighed
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R


def _bias(change: Any) -> Change:
    """Another bias: c, bias -> bias."""
    return {"accept": lambda c: c if c.attn_bias is None else replace(c, attn_bias=change(c, c.attn_bias))}


def _one_dtype(c: Call) -> Call:
    if c.attn_bias is not None and c.attn_bias.dtype != c.dtype:
        raise TypeError(f"attn_bias has dtype {c.attn_bias.dtype}, query {c.dtype}")
    return c


DEFECTS = needing("attn_bias", (
    Defect("bias-ignored", "attn_bias is ignored.", ("ATT-7",), dropped("attn_bias")),
    Defect("bias-subtracted", "attn_bias is subtracted from the logits.", ("ATT-7",),
           {"bias": lambda c, x: x if c.attn_bias is None
                else x - np.where(np.isneginf(c.attn_bias), 0, c.widen(c.attn_bias))}),
    Defect("bias-not-in-base-two",
           "The bias is added to logits that are multiplied by log2(e) already, and counts ln(2) times.",
           ("ATT-7",),
           {"bias": lambda c, x: x if c.attn_bias is None else x + c.wide(np.log(2)) * c.widen(c.attn_bias)}),
    Defect("bias-twice", "attn_bias is added twice.",
           ("ATT-7",), {"bias": lambda c, x: R.bias(c, R.bias(c, x))}),
    Defect("bias-multiplies", "attn_bias multiplies the logits.", ("ATT-7",),
           {"bias": lambda c, x: x if c.attn_bias is None
                else x * np.where(np.isneginf(c.attn_bias), 0, c.widen(c.attn_bias))}),
    Defect("bias-after-softmax", "attn_bias is added to the weights, not to the logits.", ("ATT-7", "ATT-6"),
           {"bias": lambda c, x: x}
               | weighed(lambda c, w, v: w if c.attn_bias is None else np.where(v, R.bias(c, w), 0))),
    Defect("bias-read-as-mask", "attn_bias is read as a mask of zeros and ones: it is added.", ("ATT-7",),
           {"bias": lambda c, x: x, "by_bias": lambda c: None if c.attn_bias is None else c.attn_bias != 0},
           "ml-explore/mlx#2626"),
    Defect("bias-replaces-logits", "attn_bias replaces the logits.",
           ("ATT-7",), {"bias": lambda c, x: x if c.attn_bias is None else 0 * x + c.widen(c.attn_bias)}),
    Defect("bias-transposed", "attn_bias is transposed, wherever the shapes allow it.",
           ("ATT-7",), _bias(turned)),
    *(Defect(f"bias-of-first-{name}", f"The bias of the first {name} serves all of them.",
             tuple(dict.fromkeys(("ATT-7", requirement))), _bias(first(axis)))
      for name, axis, requirement in (("batch-entry", -4, "IND-3"), ("head", -3, "HEAD-1"),
              ("query", -2, "ATT-7"), ("key", -1, "ATT-7"))),
    Defect("bias-by-key-head", "The bias is indexed by key head, not by query head.", ("ATT-7", "HEAD-2"),
           _bias(lambda c, x: x[..., np.arange(c.heads) // (c.heads // c.kv_heads), :, :] if x.ndim > 2
                     and x.shape[-3] == c.heads else x), features=("gqa",)),
    Defect("bias-last-axis-padded", "A bias whose last axis is 1 is filled up with -inf and not broadcast.",
           ("SHAPE-8",),
           _bias(lambda c, x: np.where(c.columns == 0, x, -np.inf).astype(x.dtype) if x.shape[-1] == 1
                     else x), features=("broadcast",)),
    Defect("bias-minus-inf-is-nan", "A bias of -inf gives NaN.", ("ATT-8", "NUM-6"),
           {"bias": lambda c, x: R.bias(c, x) + (0 if c.attn_bias is None else 0 * c.widen(c.attn_bias)),
            "by_bias": lambda c: None}),
    Defect("bias-minus-inf-is-a-number",
           "A bias of -inf is taken for a large negative number, so that a row of them is the mean of the values.",
           ("ATT-8", "MASK-3"),
           {"by_bias": lambda c: None}
               | _bias(lambda c, x: np.where(np.isneginf(x), -30000.0, x).astype(x.dtype))),
    Defect("bias-minus-inf-added-to-nan",
           "A bias of -inf is only added, so that a NaN or +inf in the key behind it comes through.",
           ("ATT-8", "MASK-4"),
           {"by_bias": lambda c: None if c.attn_bias is None else ~np.isneginf(c.attn_bias)
                | ~np.isneginf(c.attn_bias).all(-1, keepdims=True)}, "pytorch/pytorch#101967"),
    Defect("bias-minus-inf-row-nan",
           "A row whose bias is -inf everywhere is NaN: it is an empty row, and zero.",
           ("ATT-8", "MASK-3"), shown("by_bias", lambda c, x: x | ~x.any(axis=-1, keepdims=True)),
           "pytorch/pytorch#160064", ("empty",)),
    Defect("bias-lowest-masks", "A large finite negative bias is taken for a mask.", ("ATT-9", "MASK-15"),
           shown("by_bias", lambda c, x: x & (c.widen(c.attn_bias) > -10000)), "onnxruntime"),
    Defect("bias-clipped", "attn_bias is clipped to plus and minus 3.",
           ("ATT-7",), _bias(lambda c, x: np.where(np.isfinite(x), np.clip(x, -3, 3), x).astype(x.dtype))),
    Defect("bias-nan-is-zero", "A NaN in attn_bias is taken for 0.",
           ("ATT-10",), _bias(lambda c, x: np.where(np.isnan(x), 0, x).astype(x.dtype))),
    Defect("bias-plus-inf-wins", "A bias of +inf gives its key all the weight: the row has to be NaN.",
           ("ATT-10", "NUM-6"), _bias(lambda c, x: np.where(np.isposinf(x), 10000, x).astype(x.dtype))),
    Defect("bias-dtype-must-agree", "You refuse a bias of another floating dtype than the operands.",
           ("DTYPE-3",), {"accept": _one_dtype}, "pytorch/pytorch#99012"),
    Defect("bias-dtype-wins", "Your output has the dtype of the bias, not of the operands.",
           ("DTYPE-3", "DTYPE-1"),
           output(lambda c, x: x if c.attn_bias is None else x.astype(c.attn_bias.dtype), "output"),
           "pytorch/pytorch#99012"),
    Defect("bias-in-bfloat16", "attn_bias is rounded to bfloat16.", ("NUM-1", "DTYPE-3"),
           {"bias": lambda c, x: x if c.attn_bias is None else x + rounded(c.widen(c.attn_bias), "bfloat16")},
           admitted={"bfloat16/eager": "the bias may be stored in the dtype of the call"}),
    Defect("bias-scaled-by-heads", "attn_bias is divided by the number of heads.", ("ATT-7",),
           {"bias": lambda c, x: x if c.attn_bias is None else x + c.widen(c.attn_bias) / c.heads}),
))  # fmt: skip
