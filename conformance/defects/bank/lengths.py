"""Lengths of a static cache."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped, shown
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array


def _counted(change: Any) -> Change:
    """Other lengths: c, n -> n."""
    return {
        "by_lengths": lambda c: R.by_lengths(
            c if c.kv_lengths is None else replace(c, kv_lengths=change(c, c.kv_lengths))
        )
    }


def _refused(c: Call) -> Call:
    if c.kv_lengths is not None and ((c.kv_lengths < 0) | (c.kv_lengths > c.kv_len)).any():
        raise ValueError("kv_lengths out of range")
    return c


def _added(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
    if c.kv_lengths is None:
        return R.softmax(s, c, logits, visible)
    inside = s.by_lengths(c)
    empty = ~visible.any(axis=-1, keepdims=True)
    seen = visible | ~np.broadcast_to(inside, visible.shape) & ~empty
    return R.softmax(s, c, logits + np.where(inside, c.wide(0), c.wide(-np.inf)), seen)


DEFECTS = needing("kv_lengths", (
    Defect("lengths-ignored", "kv_lengths are ignored.", ("MASK-12",), dropped("kv_lengths")),
    Defect("lengths-one-too-many", "The slot right behind the length is read.",
           ("MASK-12",), _counted(lambda c, n: n + 1), "GeeeekExplorer/nano-vllm#213"),
    Defect("lengths-one-too-few", "The last slot within the length is not read.",
           ("MASK-12",), _counted(lambda c, n: n - 1)),
    Defect("lengths-of-first-batch-entry", "The length of the first batch entry serves all of them.",
           ("MASK-12", "IND-3"), _counted(lambda c, n: np.full_like(n, n.flat[0]))),
    Defect("longest-length-for-all", "The longest length of the batch serves all entries.",
           ("MASK-12", "IND-3"), _counted(lambda c, n: np.full_like(n, n.max()))),
    Defect("length-of-zero-is-all", "A length of 0 is taken for 'all'.", ("MASK-12", "MASK-3"),
           _counted(lambda c, n: np.where(n == 0, c.kv_len, n)), "Dao-AILab/flash-attention#1537"),
    Defect("length-at-least-one", "A length of 0 is taken for 1.",
           ("MASK-12", "MASK-3"), _counted(lambda c, n: np.maximum(n, 1)), "Dao-AILab/flash-attention#1537"),
    Defect("length-below-zero-counts-from-end", "A negative length counts from the end: it hides everything.",
           ("MASK-12",), _counted(lambda c, n: np.where(n < 0, c.kv_len + n, n))),
    Defect("length-beyond-keys-wraps", "A length above kv_len wraps around: it hides nothing.",
           ("MASK-12",), _counted(lambda c, n: np.where(n > c.kv_len, n - c.kv_len, n))),
    Defect("lengths-out-of-range-refused",
           "You refuse lengths below 0 or above kv_len: they hide everything, or nothing.",
           ("MASK-12",), {"accept": _refused}),
    Defect("lengths-without-past", "kv_lengths count only the new keys: they count the past too.",
           ("CACHE-3", "MASK-12"), _counted(lambda c, n: n + c.past), features=("cache",)),
    Defect("lengths-hide-queries", "kv_lengths hide queries, not keys.", ("MASK-12",),
           {"by_lengths": lambda c: None if c.kv_lengths is None
                else np.arange(c.q_len)[:, None] < c.kv_lengths[..., None, None, None]}),
    Defect("lengths-from-the-end", "The last n slots are read, not the first n.", ("MASK-12",),
           {"by_lengths": lambda c: None if c.kv_lengths is None
                else c.columns >= c.kv_len - c.kv_lengths[..., None, None, None]}),
    Defect("lengths-by-last-batch-axis", "With two batch axes the lengths are indexed by the last one alone.",
           ("MASK-12", "SHAPE-4"),
           _counted(lambda c, n: np.broadcast_to(n[0], n.shape) if n.ndim > 1 else n)),
    Defect("lengths-for-first-head", "kv_lengths act on the first head only.", ("MASK-12", "HEAD-1"),
           shown("by_lengths", lambda c, x: x | (np.arange(c.heads) > 0)[:, None, None])),
    Defect("unwritten-keys-leak",
           "Your lengths add -inf to the logits of slots beyond them, so that a NaN there comes through.",
           ("MASK-12",), {"softmax": _added}, "microsoft/onnxruntime#20521"),
    Defect("unwritten-values-leak",
           "Values in slots beyond the length are multiplied by zero, so that a NaN there comes through.",
           ("MASK-12",),
           {"average": lambda c, w, v, visible: w @ v if c.kv_lengths is not None
                else R.average(c, w, v, visible)}, "GeeeekExplorer/nano-vllm#213"),
    Defect("lengths-dropped-beside-mask", "kv_lengths are ignored where a mask is given.",
           ("MASK-12", "MASK-9"), dropped("kv_lengths", when=lambda c: c.mask is not None),
           features=("mask",)),
    Defect("mask-dropped-beside-lengths", "The mask is ignored where kv_lengths are given.",
           ("MASK-1", "MASK-9"), dropped("mask", when=lambda c: c.kv_lengths is not None),
           features=("mask",)),
    Defect("lengths-move-queries", "kv_lengths set the places of the queries, in place of q_offset.",
           ("MASK-8", "MASK-12"),
           {"place": lambda c: R.place(
                c if c.kv_lengths is None else replace(c, q_offset=np.asarray(c.kv_lengths) - c.q_len))},
           features=("is_causal", "q_offset")),
))  # fmt: skip
