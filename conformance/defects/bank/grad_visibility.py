"""Gradients: rules of visibility that are right on the way forward and are read otherwise on the way back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank import bias, lengths
from conformance.defects.bank.mutators import back, dropped
from conformance.defects.bank.window import sides
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

FORWARD = {defect.id: defect.change for module in (bias, lengths) for defect in module.DEFECTS}
"""Mistakes of the way forward, of which some are made on the way back as well."""


def _entries(name: str, change: Callable[[Array], Array]) -> Change:
    """An option that is changed on the way back where each batch entry has one of its own."""
    return back(
        {
            "accept": lambda c: (
                replace(c, **{name: change(getattr(c, name))}) if np.ndim(getattr(c, name)) else c
            )
        }
    )


def _exchanged(entries: Array) -> Any:
    """Two batch axes in the wrong order."""
    return entries.T.reshape(entries.shape)


def _first_place(c: Call, place: Any) -> Any:
    return R.place(replace(c, q_offset=c.q_offset.flat[0])) if np.ndim(c.q_offset) else place


WINDOW, LENGTHS, OFFSET = ("window",), ("kv_lengths",), ("q_offset",)
DEFECTS = (
    Defect("grad-window-open-left-closed",
           "On the way back a window that is open to the left begins at the query: None is taken for 0.",
           ("GRAD-1", "MASK-11"), back(sides(lambda left, right: (left or 0, right))), features=WINDOW),
    Defect("grad-window-zero-left-open", "On the way back a window of 0 to the left is taken for open on that side.",
           ("GRAD-3", "MASK-10"), back(sides(lambda left, right: (left or None, right))), features=WINDOW),
    Defect("grad-window-of-one-ignored", "On the way back a window of (0, 0) is taken for none.",
           ("GRAD-3", "MASK-10"),
           back(sides(lambda *both: (None, None) if both == (0, 0) else both)), features=WINDOW),
    Defect("grad-window-offset-of-first-entry",
           "On the way back the window uses the offset of the first batch entry for all.",
           ("GRAD-3", "MASK-10", "MASK-8"),
           back({"by_window": lambda c, place: R.by_window(c, _first_place(c, place))}),
           features=(*WINDOW, *OFFSET)),
    Defect("grad-offset-of-entry-not-below-zero",
           "On the way back a negative offset of a batch entry is taken for 0.",
           ("GRAD-3", "MASK-8"), _entries("q_offset", lambda x: np.maximum(x, 0)), features=OFFSET),
    Defect("grad-offset-not-beyond-keys", "On the way back an offset beyond the last key is moved back to it.",
           ("GRAD-3", "MASK-8"),
           back({"accept": lambda c: c if c.q_offset is None
                 else replace(c, q_offset=np.minimum(c.q_offset, c.kv_len - 1))}),
           features=(*WINDOW, *OFFSET)),
    Defect("grad-offset-batch-axes-exchanged",
           "On the way back offsets of two batch axes are read in the wrong order of these axes.",
           ("GRAD-3", "MASK-8"), _entries("q_offset", _exchanged), features=OFFSET),
    Defect("grad-lengths-batch-axes-exchanged",
           "On the way back lengths of two batch axes are read in the wrong order of these axes.",
           ("GRAD-3", "MASK-12"), _entries("kv_lengths", _exchanged), features=LENGTHS),
    Defect("grad-length-below-zero-counts-from-end",
           "On the way back a negative length counts from the end: it hides everything.",
           ("GRAD-3", "MASK-12"), back(FORWARD["length-below-zero-counts-from-end"]), features=LENGTHS),
    Defect("grad-lengths-without-past", "On the way back kv_lengths count only the new keys: they count the past too.",
           ("GRAD-3", "CACHE-3"), back(FORWARD["lengths-without-past"]), features=(*LENGTHS, "cache")),
    Defect("grad-lengths-dropped-beside-bias", "On the way back kv_lengths are ignored where a bias is given.",
           ("GRAD-3", "MASK-9"),
           back(dropped("kv_lengths", when=lambda c: c.attn_bias is not None)),
           features=(*LENGTHS, "attn_bias")),
    Defect("grad-mask-dropped-beside-lengths",
           "On the way back the mask is ignored beside kv_lengths, where no window is given.",
           ("GRAD-3", "MASK-9"),
           back(dropped("mask", when=lambda c: c.kv_lengths is not None and c.window is None)),
           features=("mask", *LENGTHS)),
    Defect("grad-mask-dropped-beside-causal",
           "On the way back the mask is ignored beside is_causal, where no window is given.",
           ("GRAD-3", "MASK-9"),
           back(dropped("mask", when=lambda c: c.is_causal and c.window is None)),
           features=("mask", "is_causal")),
    Defect("grad-causal-dropped-beside-bias",
           "On the way back is_causal is ignored beside a bias, where neither window nor softcap is given.",
           ("GRAD-3", "MASK-9"),
           back(dropped(
               "is_causal", when=lambda c: c.attn_bias is not None and c.window is None and c.softcap is None)),
           features=("is_causal", "attn_bias")),
    Defect("grad-mask-of-queries-ignored",
           "On the way back a mask that all keys share, of shape (q_len, 1), is ignored.",
           ("GRAD-3", "GRAD-4", "SHAPE-8"),
           back(dropped("mask", when=lambda c: c.mask is not None and c.mask.shape[-1] == 1)),
           features=("mask",)),
    Defect("grad-bias-lowest-masks", "On the way back a large finite negative bias is taken for a mask.",
           ("GRAD-1", "ATT-9"), back(FORWARD["bias-lowest-masks"]), features=("attn_bias",)),
)  # fmt: skip
