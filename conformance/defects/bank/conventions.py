"""Between two conventions: what a library counts, aligns, masks or returns in another way, and is handed on wrongly."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, dropped, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import column
from conformance.defects.steps import Steps
from conformance.vectors.case import Array

OPTIONS = {
    "mask": "the mask",
    "attn_bias": "attn_bias",
    "kv_lengths": "kv_lengths",
    "window": "the window",
    "softcap": "the softcap",
    "sinks": "the sinks",
    "scale": "the scale that is given",
}


def _dropped(when: Callable[[Call], bool]) -> dict[str, Any]:
    """An option that a path of its own forgets, as fields of a Defect."""
    return varied({said: dropped(name, when=when) for name, said in OPTIONS.items()}, OPTIONS["mask"])


def _offset(change: Callable[[Call, Any], Any]) -> Change:
    """Another q_offset: c, q_offset -> q_offset."""
    return {
        "accept": lambda c: (
            c if c.q_offset is None else replace(c, q_offset=change(c, np.asarray(c.q_offset)))
        )
    }


def _or_window(name: str) -> Change:
    """A rule and the window, of which one is enough."""

    def intersect(c: Call, rules: tuple[Any, ...]) -> Array:
        named = dict(zip(("mask", "bias", "causal", "window", "lengths", "segments"), rules, strict=True))
        if named[name] is None or named["window"] is None:
            return R.intersect(c, rules)
        either = named.pop(name) | named.pop("window")
        return R.intersect(c, (*named.values(), either))

    return {"intersect": intersect}


def _log(change: Callable[[Array, Array], Array]) -> Change:
    """Another lse: denominator, maximum -> lse with a last axis of 1."""
    return {
        "log": lambda c, total, peak, visible: np.where(
            visible.any(axis=-1), change(total, peak)[..., 0], c.wide(-np.inf)
        )
    }


def _padded(size: int) -> Change:
    """The lse of rows up to a multiple of a number."""
    return output(
        lambda c, x: np.concatenate([x, np.zeros((*x.shape[:-1], -c.q_len % size), x.dtype)], axis=-1), "lse"
    )


def _share(change: Callable[[Call, Array, Array], Any]) -> Change:
    """The sink multiplies the output of a softmax without one: c, sinks, lse without -> factor."""

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        if c.sinks is None:
            return R.softmax(s, c, logits, visible)
        weights, lse = R.softmax(s, replace(c, sinks=None), logits, visible)
        factor = change(c, column(c, c.sinks), lse[..., None])
        return weights * factor, R.softmax(s, c, logits, visible)[1]

    return {"softmax": softmax}


def _exchanged(*pairs: tuple[str, str]) -> Change:
    """Operands of the layer that change places, wherever their shapes allow it."""

    def accept(c: Call) -> Call:
        if not c.layer:
            return c
        for one, two in pairs:
            x, y = getattr(c, one), getattr(c, two)
            if (x is None) != (y is None) or (x is not None and x.shape != y.shape):
                return c
        names = {one: getattr(c, two) for one, two in pairs} | {two: getattr(c, one) for one, two in pairs}
        return replace(c, **names)

    return {"accept": accept}


def _by_key_head(c: Call) -> Array:
    of: Array = np.arange(c.heads) // (c.heads // c.kv_heads)
    return of


def _written_by_key_head(c: Call, x: Array) -> Array:
    """The last head of each group is written to the place of the key head; the others stay zero."""
    written = np.zeros_like(x)
    written[..., : c.kv_heads, :, :] = x[..., c.heads // c.kv_heads - 1 :: c.heads // c.kv_heads, :, :]
    return written


def _mask_of_key_head(c: Call, x: Array) -> Array:
    found: Array = x[..., _by_key_head(c), :, :] if x.ndim > 2 and x.shape[-3] == c.heads else x
    return found


DEFECTS = (
    Defect("decode-drops-option", "An option is ignored where there is a single query.",
           ("MASK-1", "MASK-12", "MASK-10", "ATT-5", "ATT-7", "ATT-12", "ATT-4"),
           **_dropped(lambda c: c.q_len == 1)),
    Defect("past-drops-option", "An option is ignored where there is a past.",
           ("CACHE-3", "MASK-1", "MASK-12", "MASK-10", "ATT-5", "ATT-7", "ATT-12", "ATT-4"),
           features=("cache",), **_dropped(lambda c: c.past > 0)),
    Defect("grouped-path-drops-option", "An option is ignored where query heads share key heads.",
           ("HEAD-2", "MASK-1", "MASK-12", "MASK-10", "ATT-5", "ATT-7", "ATT-12", "ATT-4"),
           features=("gqa",), **_dropped(lambda c: c.heads != c.kv_heads)),
    Defect("offset-zero-means-last-key",
           "A q_offset of 0 is taken for 'not given', and aligned with the last key.",
           ("MASK-8",), _offset(lambda c, x: x if x.ndim or int(x) else np.asarray(c.kv_len - c.q_len)),
           features=("q_offset",)),
    Defect("offsets-of-entries-ignored",
           "A q_offset for each batch entry is ignored; only an integer is heeded.",
           ("MASK-8",), _offset(lambda c, x: np.zeros_like(x) if x.ndim else x),
           features=("q_offset",), detail="it counts as 0",
           variants={"it is aligned with the last key": _offset(
                         lambda c, x: np.full_like(x, c.kv_len - c.q_len) if x.ndim else x)}),
    Defect("window-dropped-if-a-side-is-open", "A window of which one side is None is ignored.",
           ("MASK-11", "MASK-10"),
           dropped("window", when=lambda c: c.window is not None and None in tuple(c.window)),
           features=("window",)),
    Defect("causal-or-window", "A key is visible where causality or the window allows it: it needs both.",
           ("MASK-9",), _or_window("causal"), features=("is_causal", "window")),
    Defect("window-or-mask", "A key is visible where the window or the mask allows it: it needs both.",
           ("MASK-9",), _or_window("mask"), features=("mask", "window")),
    Defect("lse-taken-for-base-two",
           "Your lse is multiplied by ln(2), as if it had been a logarithm to base 2.",
           ("ATT-14",), output(lambda c, x: x * x.dtype.type(np.log(2)), "lse"), features=("return_lse",)),
    Defect("lse-adds-log2-to-maximum",
           "Your lse adds the logarithm to base 2 of the sum to a maximum in natural units.",
           ("ATT-14",), _log(lambda total, peak: np.log2(total) + peak), features=("return_lse",)),
    Defect("lse-adds-logarithm-to-maximum-in-base-two",
           "Your lse adds the natural logarithm of the sum to a maximum in units of base 2.",
           ("ATT-14",), _log(lambda total, peak: np.log(total) + peak / peak.dtype.type(np.log(2))),
           features=("return_lse",)),
    Defect("lse-with-padded-rows", "Your lse has the rows of the last block of queries that do not exist.",
           ("ATT-14",), features=("return_lse",),
           **varied({f"in blocks of {size}": _padded(size) for size in (2, 4, 8, 16, 32, 64, 128)},
                    "in blocks of 16")),
    Defect("bias-divided-by-scale", "attn_bias is divided by the scale, as if the scale came after it.",
           ("ATT-7", "ATT-6"),
           {"bias": lambda c, x: x if c.attn_bias is None else x
                + c.widen(c.attn_bias) / c.wide(R.scale(c) or 1)}, features=("attn_bias",)),
    Defect("sinks-share-inverted",
           "The sink multiplies the output by its own share, the sigmoid of sink - lse: it is that of lse - sink.",
           ("ATT-12",), _share(lambda c, sink, lse: 1 / (1 + np.exp(lse - sink))), features=("sinks",)),
    Defect("sinks-take-their-share-twice",
           "The sink is in the denominator, and takes its share of the output once more.",
           ("ATT-12",), _share(lambda c, sink, lse: 1 / (1 + np.exp(sink - lse)) ** 2), features=("sinks",)),
    Defect("w-k-and-w-v-swapped", "w_k projects the value and w_v the key, wherever that fits.",
           ("PROJ-1",), _exchanged(("w_k", "w_v"), ("b_k", "b_v"))),
    Defect("projection-biases-swapped", "Two of the projection biases are swapped, wherever that fits.",
           ("PROJ-2",), _exchanged(("b_k", "b_v")), detail="b_k and b_v",
           variants={"b_q and b_k": _exchanged(("b_q", "b_k")), "b_q and b_v": _exchanged(("b_q", "b_v"))}),
    Defect("query-by-key-head",
           "Query head h reads the query of head h // (H // G), which is the number of its key head.",
           ("HEAD-2",), after("project_query", lambda c, x: np.take(x, _by_key_head(c), axis=-3)),
           features=("gqa",)),
    Defect("output-by-key-head",
           "The heads of a group are all written to the place of their key head: the last one stays, others are zero.",
           ("HEAD-2", "HEAD-1"), after("average", _written_by_key_head), features=("gqa",)),
    Defect("mask-by-key-head", "The mask is indexed by key head, not by query head.",
           ("MASK-1", "HEAD-2"), after("by_mask", _mask_of_key_head), features=("mask", "gqa")),
)  # fmt: skip
