"""The number that the products are multiplied by."""

import numpy as np

from conformance.defects.defect import HALF, Change, Defect, at, varied
from conformance.defects.reference import REFERENCE as R

_ROUNDED = "what it moves the logits by is hidden by the rounding of the weights"


def _padded(multiple: int) -> Change:
    """The default scale of a width that is rounded up."""
    return {"scale": lambda c: (-(-c.d_k // multiple) * multiple) ** -0.5 if c.scale is None else c.scale}


DEFECTS = (
    Defect(
        "scale-by-d-model",
        "Your logits are divided by sqrt(d_model), the width of all heads together, not by sqrt(d_k).",
        ("ATT-3",),
        {"scale": lambda c: (c.heads * c.d_k) ** -0.5 if c.scale is None else c.scale},
    ),
    Defect(
        "scale-by-d-v",
        "Your default scale is one over the square root of the width of the values, not of the keys.",
        ("ATT-3", "SHAPE-3"),
        {"scale": lambda c: c.d_v**-0.5 if c.scale is None else c.scale},
        features=("value_dim",),
    ),
    Defect(
        "scale-by-d-k-itself",
        "Your logits are divided by d_k, not by its square root.",
        ("ATT-3",),
        {"scale": lambda c: 1 / c.d_k if c.scale is None else c.scale},
    ),
    Defect(
        "scale-left-out",
        "Your logits are not scaled at all.",
        ("ATT-3", "ATT-4"),
        {"scale": lambda c: 1.0},
    ),
    Defect(
        "scale-multiplies-sqrt",
        "Your logits are multiplied by sqrt(d_k) instead of divided.",
        ("ATT-3",),
        {"scale": lambda c: c.d_k**0.5 if c.scale is None else c.scale},
    ),
    Defect(
        "scale-by-length",
        "Your logits are divided by the square root of the number of keys.",
        ("ATT-3",),
        {"scale": lambda c: max(c.kv_len, 1) ** -0.5 if c.scale is None else c.scale},
    ),
    Defect(
        "scale-from-padded-width",
        "Your default scale comes from a d_k that is padded.",
        ("ATT-3",),
        **varied(
            {f"padded to a multiple of {n}": _padded(n) for n in (8, 16, 32, 64, 128)},
            "padded to a multiple of 8",
        ),
    ),
    Defect(
        "scale-from-input-width",
        "Your layer divides by the square root of the width of its input, not of its heads.",
        ("PROJ-7", "ATT-3"),
        {"scale": lambda c: c.query.shape[-1] ** -0.5 if c.scale is None else c.scale},
    ),
    Defect(
        "scale-log-length",
        "Your logits are multiplied by the logarithm of the number of keys.",
        ("ATT-1",),
        {"scale": lambda c: R.scale(c) * np.log(max(c.kv_len, 2))},
    ),
    Defect(
        "scale-argument-ignored",
        "The scale that you are given is ignored in favour of 1/sqrt(d_k).",
        ("ATT-4",),
        {"scale": lambda c: c.d_k**-0.5},
        "pytorch/pytorch#174049",
        ("scale",),
    ),
    Defect(
        "scale-one-means-default",
        "A scale of 1 is taken for 'not given'.",
        ("ATT-4",),
        {"scale": lambda c: c.d_k**-0.5 if c.scale in (None, 1.0) else c.scale},
        "llvm/torch-mlir#4419",
        ("scale",),
    ),
    Defect(
        "scale-zero-means-default",
        "A scale of 0 is taken for 'not given'.",
        ("ATT-4",),
        {"scale": lambda c: c.scale or c.d_k**-0.5},
        "onnxruntime",
        ("scale",),
    ),
    Defect(
        "scale-negative-means-default",
        "A negative scale is taken for 'not given'.",
        ("ATT-4",),
        {"scale": lambda c: c.d_k**-0.5 if c.scale is None or c.scale < 0 else c.scale},
        features=("scale",),
    ),
    Defect(
        "scale-after-hiding",
        "What is hidden is minus infinity before the scale: a scale of zero makes it NaN, a negative one infinity.",
        ("MASK-6", "MASK-1"),
        {"raised": lambda c, x, v, p: np.exp(np.where(v, x - p, R.scale(c) * c.wide(-np.inf)))},
        "torch, flash kernel",
        ("scale",),
    ),
    Defect(
        "scale-after-large-number",
        "What is hidden is -1e9 before the scale: with a scale of zero it counts, with a negative one it wins.",
        ("MASK-6", "MASK-1"),
        {
            "raised": lambda c, x, v, p: np.exp(np.where(v, x, R.scale(c) * c.wide(-1e9)) - p),
            "normalise": lambda c, r, t, v: r / t,
        },
        features=("scale",),
    ),
    Defect(
        "scale-without-sign",
        "The sign of the scale is lost.",
        ("ATT-4",),
        {"scale": lambda c: abs(R.scale(c))},
        features=("scale",),
    ),
    Defect(
        "scale-on-top-of-default",
        "The scale that you are given multiplies the default one instead of replacing it.",
        ("ATT-4",),
        {"scale": lambda c: c.d_k**-0.5 * (1.0 if c.scale is None else c.scale)},
        features=("scale",),
    ),
    Defect(
        "scale-divides",
        "The scale that you are given divides the logits instead of multiplying them.",
        ("ATT-4",),
        {"scale": lambda c: c.d_k**-0.5 if c.scale is None else 1 / c.scale if c.scale else 0.0},
        "lucidrains/x-transformers#190",
        ("scale",),
    ),
    Defect(
        "scale-on-both-sides",
        "Query and key are both multiplied by the scale, so that it acts twice.",
        ("ATT-4", "ATT-3"),
        {"scale": lambda c: R.scale(c) ** 2},
    ),
    Defect(
        "scale-root-on-one-side",
        "The square root of the scale, meant for query and key each, is applied to one of them only.",
        ("ATT-4", "ATT-3"),
        {"scale": lambda c: np.sign(R.scale(c)) * abs(R.scale(c)) ** 0.5},
    ),
    Defect(
        "scale-cut-to-integer",
        "The scale is cut to an integer.",
        ("ATT-4",),
        {"scale": lambda c: R.scale(c) if c.scale is None else int(c.scale)},
        features=("scale",),
    ),
    Defect(
        "scale-after-bias",
        "The bias is scaled together with the logits: the scale has to come first.",
        ("ATT-6", "ATT-7"),
        {"bias": lambda c, x: x if c.attn_bias is None else x + R.scale(c) * c.widen(c.attn_bias)},
        "microsoft/onnxruntime#22567",
        ("attn_bias",),
    ),
    Defect(
        "scale-on-output",
        "The output is multiplied by the scale, the logits are not.",
        ("ATT-1", "ATT-4"),
        {
            "score": lambda c, q, k, scale: R.score(c, q, k, 1.0),
            "average": lambda c, w, v, visible: R.average(c, w, v, visible) * R.scale(c),
        },
    ),
    Defect(
        "scale-before-projection-bias",
        "Your layer scales the query before it adds b_q.",
        ("PROJ-2", "PROJ-7"),
        {
            "project_query": lambda c: (
                R.project_query(c)
                if c.b_q is None or not R.scale(c)
                else R.project_query(c) + c.widen(c.b_q)[:, None, :] * (1 / R.scale(c) - 1)
            )
        },
    ),
    Defect(
        "scale-in-bfloat16",
        "The scale is rounded to bfloat16.",
        ("NUM-1", "NUM-7", "ATT-3"),
        {"scale": lambda c: float(np.float32(R.scale(c)).astype("bfloat16"))},
        admitted={"bfloat16/eager": "the scale may be stored in the dtype of the call"},
    ),
    Defect(
        "scale-in-float16",
        "The scale is rounded to float16.",
        ("NUM-1", "ATT-3"),
        {"scale": lambda c: float(np.float16(R.scale(c)))},
        admitted=at(("float16/eager", "bfloat16/eager"), _ROUNDED),
    ),
    Defect(
        "scale-in-float32",
        "The scale is kept in float32 in a float64 call.",
        ("NUM-4",),
        {"scale": lambda c: float(np.float32(R.scale(c)))},
        unobservable=at(("float32", *HALF), "float32 is what these are computed in"),
    ),
)
