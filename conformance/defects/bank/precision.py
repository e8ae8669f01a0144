"""Dtypes of results, and what is computed in fewer bits than the policy admits."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, cut, output, rounded
from conformance.defects.call import Call
from conformance.defects.defect import HALF, WIDE, Change, Defect, at
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array

_ONLY_64 = at(("float32", *HALF), "float32 is what these are computed in")
_ONLY_HALF = at(WIDE, "the dtype of the call is no narrower than float32")


def _operands(change: Any) -> Change:
    """The projected heads, changed."""
    return {
        step: (lambda c, step=step: change(c, getattr(R, step)(c)))
        for step in ("project_query", "project_key", "project_value")
    }


def _all_in_float32(s: Steps, c: Call) -> dict[str, Array]:
    if c.dtype != np.float64:
        return R.compute(s, c)
    given = {f.name: getattr(c, f.name) for f in fields(c)}
    narrow: dict[str, Any] = {
        n: x.astype(np.float32)
        for n, x in given.items()
        if isinstance(x, np.ndarray) and x.dtype == np.float64
    }
    return {name: x.astype(np.float64) for name, x in R.compute(s, replace(c, **narrow)).items()}


def _narrow(x: Array, c: Call) -> Any:
    return x.astype(c.dtype).astype(c.wide)


def _tf32(c: Call, x: Array) -> Array:
    """Eleven significant bits, in float32 only."""
    return cut(x + x * np.float32(2.0**-12), 13) if c.dtype == np.float32 else x


def _summed(c: Call, w: Array, v: Array, visible: Array) -> Any:
    """The average as a running sum that is kept in the dtype of the call."""
    if not np.isfinite(v).all():
        return R.average(c, w, v, visible)
    weights, total = w.astype(c.dtype), np.zeros((*w.shape[:-1], v.shape[-1]), c.dtype)
    for j in range(c.kv_len):
        total = (total + weights[..., j : j + 1] * v[..., j : j + 1, :].astype(c.dtype)).astype(c.dtype)
    return total.astype(c.wide)


def _denominator(c: Call, e: Array, peak: Array) -> Any:
    """The denominator as a running sum that is kept in the dtype of the call."""
    total = np.zeros((*e.shape[:-1], 1), c.dtype)
    for j in range(c.kv_len):
        total = (total + e[..., j : j + 1].astype(c.dtype)).astype(c.dtype)
    return total.astype(c.wide) + R.total(c, 0 * e, peak)


def _products(c: Call, q: Array, k: Array, scale: float) -> Any:
    """The product as a running sum that is kept in the dtype of the call."""
    total = np.zeros((*q.shape[:-1], k.shape[-2]), c.dtype)
    for d in range(c.d_k):
        term = q[..., :, d : d + 1].astype(c.dtype) * k[..., :, d][..., None, :].astype(c.dtype)
        total = (total + term).astype(c.dtype)
    return total.astype(c.wide) * c.wide(scale)


def _float32(step: str) -> Change:
    return after(step, lambda c, x: x.astype(np.float32).astype(x.dtype))


def _truncated(c: Call, x: Array) -> Any:
    """Towards zero to the dtype of the call, in place of to nearest."""
    near = x.astype(c.dtype)
    over = np.abs(near.astype(c.wide)) > np.abs(x)
    return np.where(over, np.nextafter(near, c.dtype.type(0)), near).astype(c.dtype)


def _step(x: Array) -> Any:
    """The step of a quantisation to plus and minus 127."""
    return max(float(np.max(np.abs(x), initial=0, where=np.isfinite(x))), 1e-30) / 127


DEFECTS = (
    Defect("output-always-float32", "Your output is float32, whatever the operands are.",
           ("DTYPE-1",), output(lambda c, x: x.astype(np.float32), "output"),
           unobservable={"float32": "it is right there"}),
    Defect("output-always-float64", "Your output is float64, whatever the operands are.",
           ("DTYPE-1",), output(lambda c, x: x.astype(np.float64), "output"),
           unobservable={"float64": "it is right there"}),
    Defect("output-always-float16", "Your output is float16, whatever the operands are.",
           ("DTYPE-1",), output(lambda c, x: x.astype(np.float16), "output"),
           unobservable={"float16": "it is right there"}),
    Defect("weights-always-float32", "Your weights are float32, whatever the operands are.",
           ("DTYPE-1", "ATT-13"), output(lambda c, x: x.astype(np.float32), "weights"),
           features=("return_weights",), unobservable={"float32": "it is right there"}),
    Defect("present-always-float32",
           "Your present_key and present_value are float32, whatever the operands are.",
           ("DTYPE-1", "CACHE-2"), output(lambda c, x: x.astype(np.float32), "present_key", "present_value"),
           features=("cache",), unobservable={"float32": "it is right there"}),
    Defect("softmax-float32-in-float64", "The softmax of a float64 call is computed in float32.",
           ("NUM-4",), _float32("bias"), "huggingface/transformers#48459", unobservable=_ONLY_64),
    Defect("weights-float32-in-float64", "The weights of a float64 call are kept in float32.",
           ("NUM-4",), _float32("normalise"), "jax.nn.dot_product_attention", unobservable=_ONLY_64),
    Defect("average-float32-in-float64", "The average of a float64 call is computed in float32.",
           ("NUM-4",), _float32("average"), "onnxruntime", unobservable=_ONLY_64),
    Defect("operands-float32-in-float64",
           "The operands of a float64 call are cast to float32, which shows once they are projected.",
           ("NUM-4",), _operands(lambda c, x: x.astype(np.float32).astype(c.wide)), unobservable=_ONLY_64),
    Defect("everything-float32-in-float64", "A float64 call is computed in float32 from end to end.",
           ("NUM-4",), {"compute": _all_in_float32}, "jax.nn.dot_product_attention", unobservable=_ONLY_64),
    Defect("denominator-float32-in-float64", "The denominator of a float64 call is kept in float32.",
           ("NUM-4",), _float32("total"), unobservable=_ONLY_64),
    Defect("output-projection-float32-in-float64",
           "The output projection of a float64 call is computed in float32.", ("NUM-4", "PROJ-3"),
           after("merge", lambda c, x: x.astype(np.float32).astype(c.wide), lambda c: c.layer),
           unobservable=_ONLY_64),
    Defect("operands-in-bfloat16", "Query, key and value are cast to bfloat16.",
           ("NUM-1",), _operands(lambda c, x: rounded(x, "bfloat16")),
           admitted={"bfloat16": "the projected heads may be stored in bfloat16"}),
    Defect("operands-in-float16", "Query, key and value are cast to float16.",
           ("NUM-1",), _operands(lambda c, x: rounded(x, "float16")),
           admitted={"float16": "the projected heads may be stored in float16"}),
    Defect("matmul-in-tf32",
           "Matrix products round their operands to 11 significant bits (TF32), which was not declared.",
           ("NUM-1",),
           _operands(_tf32) | {"average": lambda c, w, v, visible: R.average(c, _tf32(c, w), v, visible)},
           "torch.backends.cuda.matmul.allow_tf32",
           unobservable=at(("float64", *HALF), "TF32 concerns float32")),
    Defect("logits-in-bfloat16", "The logits are rounded to bfloat16.",
           ("NUM-1", "NUM-2"), after("bias", lambda c, x: rounded(x, "bfloat16")),
           admitted={"bfloat16/eager": "the logits may be stored in the dtype of the call"}),
    Defect("logits-in-float16", "The logits are rounded to float16.",
           ("NUM-1", "NUM-2"), after("bias", lambda c, x: rounded(x, "float16")),
           admitted={"float16/eager": "the logits may be stored in the dtype of the call"}),
    Defect("weights-in-bfloat16", "The weights are rounded to bfloat16 before they meet the values.",
           ("NUM-1",), after("normalise", lambda c, x: rounded(x, "bfloat16")),
           admitted={"bfloat16": "the weights may be rounded once to the dtype of the call"}),
    Defect("weights-in-float16", "The weights are rounded to float16 before they meet the values.",
           ("NUM-1",),
           after("normalise", lambda c, x: rounded(x, "float16"), when=lambda c: c.grad_output is None),
           admitted={"float16": "the weights may be rounded once to the dtype of the call"}),
    Defect("average-summed-in-16-bits",
           "The average is summed in the 16-bit dtype of the call, where small terms are lost.",
           ("NUM-3",), {"average": _summed}, "onnx reference", unobservable=_ONLY_HALF),
    Defect("denominator-summed-in-16-bits",
           "The denominator is summed in the 16-bit dtype of the call, where small terms are lost.",
           ("NUM-3",), {"total": _denominator}, "onnx reference", unobservable=_ONLY_HALF),
    Defect("products-summed-in-16-bits",
           "Products of query and key are summed in the 16-bit dtype of the call.",
           ("NUM-3",), {"score": _products}, unobservable=_ONLY_HALF),
    Defect("product-overflows-float16",
           "The product of query and key is stored in float16 before it is scaled, where it overflows.",
           ("NUM-5",), {"score": lambda c, q, k, scale: _narrow(R.score(c, q, k, 1.0), c) * c.wide(scale)},
           "pytorch/pytorch#119131",
           admitted={"float16/eager": "the product may be stored in the dtype of the call",
                     "bfloat16/eager": "the product may be stored in the dtype of the call"},
           unobservable=_ONLY_HALF),
    Defect("output-truncated", "Your output is cut to the dtype of the call and not rounded.",
           ("NUM-2", "NUM-7"),
           {"finish": lambda c, o, w, lse, k, v: R.finish(c, _truncated(c, o).astype(c.wide), w, lse, k, v)},
           unobservable=_ONLY_HALF),
    Defect("weights-truncated", "The weights are cut to the dtype of the call and not rounded.",
           ("NUM-2", "NUM-7"),
           {"normalise": lambda c, e, total, v: _truncated(c, R.normalise(c, e, total, v)).astype(c.wide)},
           unobservable=_ONLY_HALF),
    Defect("exp-approximated", "Your exponential is off by one part in ten thousand.",
           ("NUM-1",), after("raised", lambda c, x: x * (1 + c.wide(1e-4) * np.sin(c.wide(9e3) * x))),
           admitted={"bfloat16": "less than a rounding of the weights",
                     "float16/eager": "less than a rounding of the logits"}),
    Defect("reciprocal-approximated", "The reciprocal of your denominator is off by one part in a thousand.",
           ("NUM-1", "NUM-2"), after("total", lambda c, x: x * c.wide(1.001)),
           admitted={"bfloat16/eager": "less than a rounding of the weights"}),
    Defect("gain-of-one-percent", "Your output is one per cent too large.",
           ("NUM-1", "NUM-2"), after("average", lambda c, x: x * c.wide(1.01))),
    Defect("small-gain-in-all-elements",
           "All outputs are too large by a relative error that no element shows alone.", ("NUM-2",),
           {"average": lambda c, w, v, visible: R.average(c, w, v, visible) * c.wide(
                1 + 8 * {8: 2.0**-53, 4: 2.0**-24}[c.dtype.itemsize] if c.dtype.itemsize > 2 else 1)},
           unobservable=at(HALF, "the gain is of float64 and float32 only")),
    Defect("values-quantised", "The values are quantised to 8 bits with one step for the whole tensor.",
           ("NUM-1", "IND-3"),
           {"average": lambda c, w, v, visible: R.average(c, w,
                np.where(np.isfinite(v), np.round(v / (s := _step(v))) * s, v).astype(c.wide), visible)}),
    Defect("keys-quantised", "The keys are quantised to 8 bits with one step for the whole tensor.",
           ("NUM-1", "IND-3"),
           {"score": lambda c, q, k, scale: R.score(c, q,
                np.where(np.isfinite(k), np.round(k / (s := _step(k))) * s, k).astype(c.wide), scale)}),
    Defect("weights-flushed-at-float16-normal",
           "Weights below the smallest normal number of float16 are flushed to zero.",
           ("NUM-1",), after("normalise", lambda c, x: np.where(x < 2.0**-14, 0, x))),
)  # fmt: skip
