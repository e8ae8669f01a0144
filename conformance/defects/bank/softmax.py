"""From logits to weights."""

from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, logits, output, products, weighed
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array


def _some(total: Array) -> Array:
    """One where there is nothing."""
    return np.where(total == 0, total.dtype.type(1), total)


def _along(axis: int) -> Change:
    """A softmax along another axis than the keys."""
    return {
        "peak": lambda c, x, visible: np.max(
            np.where(visible, x, -1e30), axis=axis, keepdims=True, initial=-1e30
        ),
        "raised": lambda c, x, visible, peak: np.exp(np.where(visible, x - peak, c.wide(-np.inf))),
        "total": lambda c, e, peak: e.sum(axis=axis, keepdims=True),
        "log": lambda c, total, peak, visible: np.zeros(visible.shape[:-1], c.wide),
    }


def _subtracting(number: str, *axes: int) -> Change:
    """Another number than the largest logit is subtracted: of a row, or of more."""

    def peak(c, x, visible):  # type: ignore[no-untyped-def]
        if not x.size:
            return R.peak(c, x, visible)
        found = getattr(np, number)(np.where(visible, x, np.nan), axis=axes or -1, keepdims=True)
        return np.where(visible.any(axis=-1, keepdims=True), found, 0).astype(c.wide)

    return {"peak": peak}


def _in_base_two(c: Call, x: Array, visible: Array, peak: Array) -> Any:
    return np.exp2(np.where(visible, (x - peak) * c.wide(np.log2(np.e)), c.wide(-np.inf)))


DEFECTS = (
    Defect("exponentials-by-base-two", "2 is raised to the logits times log2(e), as it should be.",
           ("ATT-2",), {"raised": _in_base_two}, "FlashAttention",
           equivalent="the same function, and the policy admits its roundings"),
    Defect("softmax-over-queries", "Your softmax runs over the queries, not over the keys.",
           ("ATT-2",), _along(-2),
           variants={"less the maximum over the keys": {
                         "total": lambda c, raised, peak: _some(raised.sum(axis=-2, keepdims=True))}}),
    Defect("softmax-over-heads", "Your softmax runs over the heads, not over the keys.",
           ("ATT-2", "HEAD-1"), _along(-3)),
    Defect("softmax-without-maximum",
           "Your softmax does not subtract the largest logit, so large logits overflow.",
           ("ATT-2",), {"peak": lambda c, x, visible: np.zeros((*x.shape[:-1], 1), c.wide)}),
    Defect("softmax-in-base-two", "Your softmax raises 2 and not e: multiply the logits by log2(e) first.",
           ("ATT-1",), logits(lambda c, x: x * c.wide(np.log(2)))),
    Defect("softmax-log2e-on-wrong-side",
           "Your logits are multiplied by log2(e) before exp, as exp2 would want it.",
           ("ATT-1",), logits(lambda c, x: x / c.wide(np.log(2)))),
    Defect("softmax-maximum-of-masked",
           "The largest logit that your softmax subtracts is taken over masked keys too.",
           ("ATT-2", "MASK-4"), {"peak": lambda c, x, visible: R.peak(c, x, np.ones_like(visible))},
           features=("mask", "attn_bias")),
    Defect("softmax-maximum-of-everything",
           "One maximum is subtracted from all rows, so that rows of small logits underflow.",
           ("ATT-2", "IND-3"),
           {"peak": lambda c, x, visible: np.full((*x.shape[:-1], 1),
                np.max(np.where(visible, x, -np.inf), initial=-1e30), c.wide)}),
    Defect("softmax-maximum-of-batch",
           "The maximum that is subtracted is that of all batch entries together.", ("IND-3", "ATT-2"),
           {"peak": lambda c, x, visible: np.broadcast_to(
                R.peak(c, x, visible).max(axis=tuple(range(len(c.batch))), keepdims=True, initial=-1e30),
                (*x.shape[:-1], 1))}),
    Defect("softmax-minimum-subtracted", "Your softmax subtracts the smallest logit in place of the largest.",
           ("ATT-2",), _subtracting("nanmin")),
    Defect("softmax-maximum-not-below-zero",
           "The maximum that your softmax subtracts starts at 0, so that rows far below zero underflow.",
           ("ATT-2", "MASK-15"), after("peak", lambda c, x: np.maximum(x, 0))),
    Defect("softmax-maximum-of-first-key",
           "Your softmax subtracts the first logit of the row in place of the largest.",
           ("ATT-2",), {"peak": lambda c, x, visible: x[..., :1] if c.kv_len else R.peak(c, x, visible)}),
    Defect("softmax-clamps-at-20", "Your logits are clamped at 20.",
           ("ATT-1", "ATT-2"), logits(lambda c, x: np.minimum(x, 20))),
    Defect("softmax-clamps-at-float16-range", "Your logits are clamped to plus and minus 65504.",
           ("ATT-10", "NUM-6"), logits(lambda c, x: np.clip(x, -65504, 65504))),
    Defect("softmax-clamps-at-1000", "Your logits are clamped to plus and minus 1000.",
           ("ATT-2",), logits(lambda c, x: np.where(np.isfinite(x), np.clip(x, -1000, 1000), x))),
    Defect("exp-flushed-below-minus-16", "Exponentials below exp(-16) of the largest are set to zero.",
           ("ATT-1", "NUM-1"),
           {"raised": lambda c, x, visible, peak: np.where(x - peak < -16, 0,
                R.raised(c, x, visible, peak))}),
    Defect("exp-flushed-below-minus-8", "Exponentials below exp(-8) of the largest are set to zero.",
           ("ATT-1", "NUM-1"),
           {"raised": lambda c, x, visible, peak: np.where(x - peak < -8, 0, R.raised(c, x, visible, peak))}),
    Defect("tiny-weights-dropped", "Weights below 0.001 are dropped.",
           ("ATT-1", "NUM-1"), weighed(lambda c, w, visible: np.where(w < 1e-3, 0, w))),
    Defect("small-weights-dropped", "Weights below 0.01 are dropped.",
           ("ATT-1", "NUM-1"), weighed(lambda c, w, visible: np.where(w < 1e-2, 0, w))),
    Defect("only-largest-weights-kept", "Only the eight largest weights of each row are kept.", ("ATT-1",),
           weighed(lambda c, w, visible: w if c.kv_len < 9 else np.where(w < np.sort(w)[..., -8:-7], 0, w))),
    Defect("softmax-not-normalised", "Your weights are not divided by their sum.",
           ("ATT-1",), {"normalise": lambda c, e, total, visible: e}),
    Defect("softmax-epsilon", "A small number (1e-6) is added to the denominator of your softmax.",
           ("ATT-1", "NUM-1"), after("total", lambda c, x: x + c.wide(1e-6))),
    Defect("softmax-large-epsilon", "A thousandth is added to the denominator of your softmax.",
           ("ATT-1", "NUM-1"), after("total", lambda c, x: x + c.wide(1e-3))),
    Defect("softmax-plus-one", "1 is added to the denominator of your softmax, as if a sink were given.",
           ("ATT-1",), {"total": lambda c, e, peak: R.total(c, e, peak) + np.exp(-peak)}),
    Defect("softmax-of-absolute-values", "Your softmax takes the absolute value of the products.",
           ("ATT-1",), products(lambda c, x: np.abs(x))),
    Defect("relu-on-products", "Negative products are set to zero before the softmax.",
           ("ATT-1",), products(lambda c, x: np.maximum(x, 0))),
    Defect("relu-on-values", "Negative values are set to zero.",
           ("ATT-1",), {"average": lambda c, w, v, visible: R.average(c, w, np.maximum(v, 0), visible)}),
    Defect("relu-on-output", "Negative outputs are set to zero.",
           ("ATT-1",), output(lambda c, x: np.maximum(x, 0).astype(x.dtype), "output")),
    Defect("softmax-twice", "The softmax is applied twice.", ("ATT-1",),
           weighed(lambda c, w, v: np.exp(w) * v / np.maximum((np.exp(w) * v).sum(-1, keepdims=True), 1e-9))),
    Defect("squares-for-exponentials", "Your weights are squares of the logits and not exponentials.",
           ("ATT-1",), {"raised": lambda c, x, visible, peak: np.where(visible, x**2, 0)}),
    Defect("sigmoid-for-softmax", "Your weights are sigmoids of the logits and not a softmax.", ("ATT-1",),
           {"softmax": lambda s, c, x, v: (np.where(v, 1 / (1 + np.exp(-x)), 0), R.softmax(s, c, x, v)[1])}),
    Defect("softmax-left-out", "There is no softmax: the scaled products are the weights.",
           ("ATT-1",), {"softmax": lambda s, c, x, v: (np.where(v, x, 0), R.softmax(s, c, x, v)[1])}),
    Defect("weights-of-one", "All visible keys have the same weight.", ("ATT-1",),
           weighed(lambda c, w, visible: visible / np.maximum(visible.sum(-1, keepdims=True),
                       1).astype(c.wide))),
    Defect("hard-maximum", "The key with the largest logit takes all the weight.", ("ATT-1",),
           weighed(lambda c, w, v: ((w == w.max(-1, keepdims=True, initial=-1)) & v).astype(c.wide))),
    Defect("softmax-of-negated-products",
           "The sign of the logits is wrong: the least alike key gets the largest weight.",
           ("ATT-1",), products(lambda c, x: -x)),
    Defect("distance-for-product",
           "Your logits are negated squared distances of query and key and not their products.", ("ATT-1",),
           {"score": lambda c, q, k, scale: R.score(c, q, k,
                scale) - (k**2).sum(-1)[..., None, :] * c.wide(scale / 2)}),
    Defect("cosine-for-product", "Query and key are normalised before they are multiplied.", ("ATT-1",),
           {"score": lambda c, q, k, scale: R.score(c, q / np.linalg.norm(q, axis=-1, keepdims=True),
                k / np.linalg.norm(k, axis=-1, keepdims=True), scale)}),
    Defect("query-added-to-output",
           "The query is added to the output, as a residual connection would do outside.",
           ("ATT-1", "PROJ-3"),
           output(lambda c, x: (x + c.query).astype(x.dtype) if x.shape == c.query.shape else x, "output")),
    Defect("denominator-of-first-row", "All rows are divided by the denominator of the first one.",
           ("ATT-1",), after("total", lambda c, x: x[..., :1, :] + 0 * x)),
    Defect("one-more-to-visible-logits",
           "1 is added to every visible logit, where neither a sink nor an lse is asked for.",
           ("ATT-1",), {"bias": lambda c, x: R.bias(c, x) + (c.sinks is None and not c.return_lse)},
           "tinygrad/tinygrad#2425",
           equivalent="the softmax does not see a number that all logits of a row share"),
)  # fmt: skip
