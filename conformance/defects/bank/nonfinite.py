"""NaN and infinity: swallowed, spread or leaked."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, logits, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.dtypes import MAX_FINITE, dtype_name
from conformance.vectors.case import Array


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0).astype(x.dtype)


def _clipped(x: Array) -> Array:
    """As numpy.nan_to_num does."""
    largest = MAX_FINITE[dtype_name(x.dtype)]
    return np.clip(np.where(np.isnan(x), 0, x), -largest, largest).astype(x.dtype)


def _inputs(change: Any, *names: str) -> Change:
    return {"accept": lambda c: replace(c, **{name: change(getattr(c, name)) for name in names})}


def _values(change: Any) -> Change:
    """Other values in the average: c, v -> v."""
    return {"average": lambda c, w, v, visible: R.average(c, w, change(c, v), visible)}


def _checked(c: Call) -> Call:
    if not all(np.isfinite(x).all() for x in (c.query, c.key, c.value)):
        raise FloatingPointError("NaN or infinity in an operand")
    return c


def _safe(s: Steps, c: Call, x: Array, visible: Array) -> Any:
    weights, lse = R.softmax(s, c, x, visible)
    return np.where(np.isnan(weights), 0, weights), lse


def _skipping(s: Steps, c: Call, x: Array, visible: Array) -> Any:
    return R.softmax(s, c, x, visible & ~np.isnan(x))


def _spread(axes: tuple[int, ...]) -> Change:
    """A NaN anywhere along these axes becomes a NaN everywhere along them."""
    return after(
        "average", lambda c, x: np.where(np.isnan(x).any(axis=axes, keepdims=True), np.nan, x).astype(c.wide)
    )


def _spread_attend(s: Steps, c: Call, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    heads, weights, lse = R.attend(s, c, q, k, v)
    broken = np.isnan(heads).all(axis=-1).any(axis=-2)[..., None, :, None]
    return np.where(broken, c.wide(np.nan), heads), weights, lse


DEFECTS = (
    Defect("output-nan-to-num", "NaN and infinity in your output are replaced by numbers.",
           ("ATT-10", "NUM-6"), output(lambda c, x: _clipped(x), "output"),
           detail="infinity by the largest of the dtype",
           variants={"infinity by zero as well": output(lambda c, x: _finite(x), "output")}),
    Defect("output-nan-is-zero", "NaN in your output is replaced by zero.",
           ("ATT-10", "NUM-6"), output(lambda c, x: np.where(np.isnan(x), np.zeros_like(x), x), "output")),
    Defect("query-nan-to-num", "NaN in the query is replaced by zero.",
           ("ATT-10", "NUM-6"), _inputs(_finite, "query")),
    Defect("key-nan-to-num", "NaN and infinity in the key are replaced by zero.",
           ("ATT-10", "NUM-6"), _inputs(_finite, "key")),
    Defect("value-nan-to-num", "NaN and infinity in the values are replaced by zero.",
           ("ATT-11", "NUM-6"), _values(lambda c, v: _finite(v))),
    Defect("value-nan-is-zero", "NaN in the values is replaced by zero.",
           ("ATT-11", "NUM-6"), _values(lambda c, v: np.where(np.isnan(v), 0, v).astype(c.wide))),
    Defect("value-infinity-clipped", "Infinity in the values is replaced by the largest finite number.",
           ("ATT-11", "NUM-6"), _values(lambda c, v: np.clip(v, np.finfo(c.wide).min, np.finfo(c.wide).max))),
    Defect("value-infinity-is-nan", "Infinity in the values comes out as NaN.",
           ("ATT-11", "NUM-6"), _values(lambda c, v: np.where(np.isinf(v), np.nan, v).astype(c.wide))),
    Defect("value-nan-spreads-over-row", "NaN in one column of a value reaches all columns.",
           ("ATT-11",), _spread((-1,))),
    Defect("nan-row-is-zero", "Your safe softmax turns a NaN row into zeros.",
           ("ATT-10", "NUM-6"), {"softmax": _safe}, "pytorch/pytorch#127055"),
    Defect("nan-row-is-zero-below-16-keys", "With fewer than 16 keys a NaN row comes out as zeros.",
           ("ATT-10", "NUM-6"),
           {"softmax": lambda s, c, x, v: _safe(s, c, x, v) if c.kv_len < 16 else R.softmax(s, c, x, v)},
           "torch.nn.functional.scaled_dot_product_attention"),
    Defect("nan-key-skipped", "A key whose logit is NaN is left out.",
           ("ATT-10", "NUM-6"), {"softmax": _skipping}),
    Defect("nan-spreads-over-head", "One NaN row makes all rows of its head NaN.",
           ("ATT-10",), _spread((-1, -2))),
    Defect("nan-spreads-over-heads", "One NaN row makes the same row of all heads NaN.",
           ("ATT-10", "HEAD-1"), {"attend": _spread_attend}),
    Defect("nan-spreads-over-batch", "One NaN makes every batch entry NaN.", ("ATT-10", "IND-3"),
           after("average", lambda c, x: np.where(np.isnan(x).any(), c.wide(np.nan), x))),
    Defect("plus-inf-logit-wins", "A logit of +inf gives its key all the weight: the row has to be NaN.",
           ("ATT-10", "NUM-6"),
           logits(lambda c, x: np.where(np.isposinf(x), np.finfo(np.float32).max, x).astype(c.wide))),
    Defect("minus-inf-logit-is-nan", "A logit of -inf beside finite ones makes its row NaN: its weight is 0.",
           ("ATT-10", "NUM-6"),
           {"softmax": lambda s, c, x, v: R.softmax(s, c,
                np.where(v & np.isneginf(x), np.nan, x).astype(c.wide), v)}),
    Defect("non-finite-refused", "You refuse operands that hold NaN or infinity: they have a meaning.",
           ("ATT-10", "ATT-11", "MASK-4"), {"accept": _checked}),
    Defect("keys-centred",
        "The mean key is subtracted from all keys, so that NaN or infinity in one reaches the rows that do not see it.",
        ("MASK-4", "ATT-10"),
        {"score": lambda c, q, k, scale: R.score(c, q,
             k - (k.mean(axis=-2, keepdims=True) if c.kv_len else 0), scale)}),
    Defect("values-centred",
           "The mean value is subtracted and added again, so that NaN in one reaches the rows that do not see it.",
           ("MASK-5", "ATT-11", "MASK-12"),
           {"average": lambda c, w, v, visible: R.average(c, w, v, visible)
                + (0 if not c.kv_len else 0 * v.mean(axis=-2, keepdims=True))}),
    Defect("empty-row-reads-values",
           "An empty row is zero times the values, so that it is NaN where they are.", ("MASK-3", "MASK-5"),
           {"average": lambda c, w, v, visible: R.average(c, w, v,
                visible | ~visible.any(axis=-1, keepdims=True))}, features=("empty",)),
    Defect("masked-weight-nan",
           "The exponential of a masked logit is multiplied by zero, so that a NaN in its key comes through.",
           ("MASK-4",), {"raised": lambda c, x, v, peak: R.raised(c, x, v, peak) + 0 * x}),
)  # fmt: skip
