"""The softcap and its place in the order."""

from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped, weighed
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array


def _capped(change: Any) -> Change:
    """Another bend: x, cap -> x."""
    return {"cap": lambda c, x: x if c.softcap is None else change(x, c.wide(c.softcap))}


def _after_mask(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
    if c.softcap is None:
        return R.softmax(s, c, logits, visible)
    exists = s.intersect(c, (s.by_lengths(c),))
    return R.softmax(s, c, R.cap(c, np.where(visible, logits, c.wide(-np.inf))), exists)


DEFECTS = needing("softcap", (
    Defect("softcap-ignored", "The softcap is ignored.", ("ATT-5",), dropped("softcap")),
    Defect("softcap-after-mask",
           "Your softcap comes after the mask, so that masked keys get the logit -softcap and with it a weight.",
           ("ATT-6", "MASK-3"), {"cap": lambda c, x: x, "softmax": _after_mask}, "onnx/onnx#7865"),
    Defect("softcap-after-bias", "Your softcap comes after the bias and bends it too.", ("ATT-6",),
           {"cap": lambda c, x: x, "bias": lambda c, x: R.cap(c, R.bias(c, x))}, features=("attn_bias",)),
    Defect("softcap-before-scale", "Your softcap comes before the scale.", ("ATT-6", "ATT-5"),
           {"score": lambda c, q, k, scale: R.cap(c, R.score(c, q, k, 1.0)) * c.wide(scale),
            "cap": lambda c, x: x}),
    Defect("softcap-clips", "Your softcap clips the logits: it bends them by the hyperbolic tangent.",
           ("ATT-5",), _capped(lambda x, cap: np.clip(x, -cap, cap))),
    Defect("softcap-not-multiplied-back", "Your softcap is tanh(x / c): the factor c in front is missing.",
           ("ATT-5",), _capped(lambda x, cap: np.tanh(x / cap))),
    Defect("softcap-in-base-two",
           "The softcap is applied to logits that are multiplied by log2(e) already: it bends at c ln(2).",
           ("ATT-5",),
           _capped(lambda x, cap: cap * x.dtype.type(np.log(2)) * np.tanh(
                       x / (cap * x.dtype.type(np.log(2)))))),
    Defect("softcap-not-divided", "Your softcap is c * tanh(x): the division by c inside is missing.",
           ("ATT-5",), _capped(lambda x, cap: cap * np.tanh(x))),
    Defect("softcap-divides-twice", "Your softcap divides by c outside as well, where it should multiply.",
           ("ATT-5",), _capped(lambda x, cap: np.tanh(x / cap) / cap)),
    Defect("softcap-by-sigmoid", "Your softcap bends by another function than the hyperbolic tangent.",
           ("ATT-5",), _capped(lambda x, cap: x / (1 + np.abs(x / cap)))),
    Defect("softcap-from-above-only", "Only positive logits are capped.",
           ("ATT-5",), _capped(lambda x, cap: np.where(x > 0, cap * np.tanh(x / cap), x))),
    Defect("softcap-large-ignored", "A softcap of 20 or more is taken for none.",
           ("ATT-5",), dropped("softcap", when=lambda c: c.softcap is not None and c.softcap >= 20)),
    Defect("softcap-above-50-ignored", "A softcap above 50 is taken for none.",
           ("ATT-5", "GRAD-7"), dropped("softcap", when=lambda c: c.softcap is not None and c.softcap > 50)),
    Defect("softcap-twice", "The softcap is applied twice.",
           ("ATT-5",), {"cap": lambda c, x: R.cap(c, R.cap(c, x))}),
    Defect("softcap-on-weights", "The softcap bends the weights, not the logits.",
           ("ATT-5", "ATT-6"), {"cap": lambda c, x: x} | weighed(lambda c, w, visible: R.cap(c, w))),
    Defect("softcap-by-polynomial",
           "Your hyperbolic tangent is an approximation that is off by some thousandths.", ("ATT-5", "NUM-1"),
           _capped(lambda x, cap: cap * np.clip((z := x / cap) * (27 + z * z) / (27 + 9 * z * z), -1, 1))),
    Defect("softcap-tanh-in-float16", "The hyperbolic tangent of your softcap is computed in float16.",
           ("ATT-5", "NUM-1"),
           _capped(lambda x, cap: cap * np.tanh((x / cap).astype(np.float16)).astype(x.dtype)),
           admitted={"float16/eager": "the logits may be stored in the dtype of the call",
                     "bfloat16/eager": "the logits may be stored in the dtype of the call, which is coarser"}),
    Defect("bias-dropped-beside-softcap", "The bias is ignored where a softcap is given.", ("ATT-6", "ATT-7"),
           dropped("attn_bias", when=lambda c: c.softcap is not None), features=("attn_bias",)),
    Defect("mask-dropped-beside-softcap", "The mask is ignored where a softcap is given.",
           ("ATT-6", "MASK-1"), dropped("mask", when=lambda c: c.softcap is not None), features=("mask",)),
))  # fmt: skip
