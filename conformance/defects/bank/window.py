"""Windows."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R


def sides(change: Any) -> Change:
    """Another window: left, right -> (left, right)."""
    return {
        "by_window": lambda c, p: R.by_window(
            c if c.window is None else replace(c, window=change(*c.window)), p
        )
    }


def _moved(step: int, side: int) -> Change:
    """One side moved."""
    return sides(
        lambda *sides: tuple(x if x is None or i != side else max(x + step, -1) for i, x in enumerate(sides))
    )


def _placed(change: Any) -> Change:
    """Another centre: c, place -> place."""
    return {"by_window": lambda c, p: R.by_window(c, change(c, p))}


DEFECTS = needing("window", (
    Defect("window-ignored", "The window is ignored.", ("MASK-10",), dropped("window")),
    Defect("window-left-exclusive",
           "A window of w to the left shows w keys: both ends are included, so it is w + 1 with the query's own.",
           ("MASK-10",), _moved(-1, 0), "huggingface/transformers#39408"),
    Defect("window-left-too-wide", "Your window shows one key too many to the left.",
           ("MASK-10",), _moved(1, 0)),
    Defect("window-right-exclusive", "The right end of your window is left out.",
           ("MASK-10",), _moved(-1, 1)),
    Defect("window-right-too-wide", "Your window shows one key too many to the right.",
           ("MASK-10",), _moved(1, 1)),
    Defect("window-left-open", "The left side of the window is ignored.",
           ("MASK-10",), sides(lambda left, right: (None, right))),
    Defect("window-right-open", "The right side of the window is ignored.",
           ("MASK-10",), sides(lambda left, right: (left, None))),
    Defect("window-always-causal", "Your window never looks ahead, as if causality were part of it.",
           ("MASK-10", "MASK-11"), sides(lambda left, right: (left, 0))),
    Defect("window-sides-swapped", "Left and right of the window are swapped.",
           ("MASK-10",), sides(lambda left, right: (right, left))),
    Defect("window-left-for-both", "The left distance is used on both sides.",
           ("MASK-10", "MASK-11"), sides(lambda left, right: (left, left))),
    Defect("window-none-is-zero", "None in a window is taken for 0: it means that the side is open.",
           ("MASK-11",), sides(lambda left, right: (left or 0, right or 0))),
    Defect("window-zero-is-none", "0 in a window is taken for open.",
           ("MASK-10", "MASK-11"), sides(lambda left, right: (left or None, right or None))),
    Defect("window-half-of-width", "The left number of the window is read as its whole width.", ("MASK-10",),
           sides(lambda left, right: (left if left is None else left // 2,
                     right if right is None else right // 2))),
    Defect("window-ignores-offset", "The window is centred on i, not on i + q_offset.",
           ("MASK-10", "MASK-8"), _placed(lambda c, p: np.arange(c.q_len)[:, None]), features=("q_offset",)),
    Defect("window-from-the-end", "The window is aligned with the last key, whatever the q_offset.",
           ("MASK-10", "MASK-8"), _placed(lambda c, p: np.arange(c.q_len)[:, None] + c.kv_len - c.q_len),
           features=("q_offset",)),
    Defect("window-offset-of-first-batch-entry", "The window of the first batch entry serves all of them.",
           ("MASK-10", "IND-3"), _placed(lambda c, p: p[:1]), features=("q_offset",)),
    Defect("window-centre-kept-within-keys",
           "A window whose centre lies beyond the keys is moved back to them.", ("MASK-10", "MASK-3"),
           _placed(lambda c, p: np.clip(p, 0, max(c.kv_len - 1, 0))), features=("q_offset",)),
    Defect("window-replaces-causal", "is_causal is ignored where a window is given.", ("MASK-9", "MASK-6"),
           dropped("is_causal", when=lambda c: c.window is not None), features=("is_causal",)),
    Defect("causal-replaces-window", "The window is ignored where is_causal is given.",
           ("MASK-9", "MASK-10"), dropped("window", when=lambda c: c.is_causal), features=("is_causal",)),
    Defect("window-dropped-beside-mask", "The window is ignored where a mask is given.",
           ("MASK-9", "MASK-10"), dropped("window", when=lambda c: c.mask is not None), features=("mask",)),
    Defect("window-dropped-beside-lengths", "The window is ignored where kv_lengths are given.",
           ("MASK-9", "MASK-10"), dropped("window", when=lambda c: c.kv_lengths is not None),
           features=("kv_lengths",)),
    Defect("lengths-dropped-beside-window", "kv_lengths are ignored where a window is given.",
           ("MASK-9", "MASK-12"), dropped("kv_lengths", when=lambda c: c.window is not None),
           features=("kv_lengths",)),
    Defect(
        "window-by-blocks",
        "The window is decided for blocks of 16 keys and not within them.",
        ("MASK-10",),
        {
            "by_window": lambda c, p: (
                None
                if c.window is None
                else (c.columns // 16 >= (p - (c.kv_len if c.window[0] is None else c.window[0])) // 16)
                & (c.columns // 16 <= (p + (c.kv_len if c.window[1] is None else c.window[1])) // 16)
            )
        },
    ),
))  # fmt: skip
