"""A past in front of the keys."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import project
from conformance.vectors.case import Array

_PRESENT = ("present_key", "present_value")


def _past(c: Call) -> bool:
    return c.past_key is not None


def _joined(change: Any) -> Change:
    """Another way to join: c, past, new -> whole, for keys and values."""
    return {
        "join": lambda c, k, v: (
            (change(c, c.widen(c.past_key), k), change(c, c.widen(c.past_value), v)) if _past(c) else (k, v)
        )
    }


def _present(change: Any, *names: str) -> Change:
    """Another present, the attention unchanged."""
    return output(change, *(names or _PRESENT), when=_past)


def _lost(c: Call, o: dict[str, Array]) -> Any:
    return {name: x for name, x in o.items() if name not in _PRESENT}


def _biased(c: Call, past: Array, b: Any) -> Array:
    return past if b is None else past + c.widen(b)[:, None, :]


def _new_columns(name: str) -> Change:
    """A mask or bias that is read for the new keys only; the past is open."""

    def accept(c: Call) -> Call:
        x = getattr(c, name)
        if x is None or not c.past or x.shape[-1] != c.kv_len:
            return c
        moved: Any = np.concatenate(
            [np.full_like(x[..., : c.past], name == "mask"), x[..., : c.kv_len - c.past]], axis=-1
        )
        return replace(c, **{name: moved})

    return {"accept": accept}


DEFECTS = needing("cache", (
    Defect("past-ignored", "The past is returned in present, but not attended.",
           ("CACHE-1",), {"by_lengths": lambda c: R.intersect(c, (R.by_lengths(c), c.columns >= c.past))}),
    Defect("past-behind-new", "The past is put behind the new keys: it comes first.", ("CACHE-1", "CACHE-2"),
           _joined(lambda c, past, new: np.concatenate([new, past], axis=-2)), "microsoft/onnxruntime#22567"),
    Defect("past-reversed", "The past is put in front in reverse order.", ("CACHE-1", "CACHE-2"),
           _joined(lambda c, past, new: np.concatenate([past[..., ::-1, :], new], axis=-2))),
    Defect("past-values-behind-new", "The past values are put behind the new ones, the past keys in front.",
           ("CACHE-1",),
           {"join": lambda c, k, v: (R.join(c, k, v)[0], np.concatenate([v, c.widen(c.past_value)], axis=-2))
                if _past(c) else (k, v)}),
    Defect("past-overwritten",
           "The new keys overwrite the last of the past, which leaves their own slots empty.",
           ("CACHE-1", "CACHE-2"),
           _joined(lambda c, past, new: np.concatenate([past[..., :-1, :], new, 0 * past[..., -1:, :]],
                       axis=-2)), "microsoft/onnxruntime#22567"),
    Defect("past-of-first-batch-entry", "The past of the first batch entry serves all of them.",
           ("CACHE-1", "IND-3"),
           _joined(lambda c, past, new: np.concatenate([past[:1].repeat(len(past), axis=0), new], axis=-2))),
    Defect("past-of-first-head", "The past of the first head serves all of them.", ("CACHE-1", "HEAD-1"),
           _joined(lambda c, past, new: np.concatenate([past[..., :1, :, :].repeat(c.kv_heads, axis=-3), new],
                       axis=-2))),
    Defect("past-only-read", "The new keys are not attended, only the past.",
           ("CACHE-1",), {"by_lengths": lambda c: c.columns < c.past if c.past else R.by_lengths(c)}),
    Defect("present-is-new-only", "present_key and present_value hold the new tokens without the past.",
           ("CACHE-2",), _present(lambda c, x: x[..., c.past :, :])),
    Defect("present-is-past-only", "present_key and present_value hold the past without the new tokens.",
           ("CACHE-2",), _present(lambda c, x: x[..., : c.past, :])),
    Defect("present-missing", "present_key and present_value are not returned.",
           ("CACHE-2",), after("finish", _lost)),
    Defect("present-of-empty-past-missing",
           "present_key and present_value are not returned where the past has length 0.",
           ("CACHE-2",), after("finish", _lost, lambda c: c.past == 0)),
    Defect("present-scaled", "present_key holds scaled keys: keys are returned as they are.", ("CACHE-2",),
           _present(lambda c, x: (x * c.dtype.type(R.scale(c))).astype(x.dtype), "present_key")),
    Defect("present-values-are-keys", "present_value holds the keys, wherever that fits.", ("CACHE-2",),
           after("finish", lambda c, o: o | {"present_value": o["present_key"]},
                 lambda c: _past(c) and c.d_k == c.d_v)),
    Defect("present-swapped", "present_key holds the values and present_value the keys, wherever that fits.",
           ("CACHE-2",),
           after("finish",
                 lambda c, o: o | {"present_value": o["present_key"], "present_key": o["present_value"]},
                 lambda c: _past(c) and c.d_k == c.d_v)),
    Defect("present-repeated-for-groups", "present_key and present_value have H heads: they have G.",
           ("CACHE-2", "SHAPE-2"), _present(lambda c, x: np.repeat(x, c.heads // c.kv_heads, axis=-3)),
           features=("gqa",)),
    Defect("present-cut-to-longest-length",
           "present_key and present_value end at the longest of kv_lengths: they hold every slot.",
           ("CACHE-4",),
           after("finish",
                 lambda c, o: {n: x[..., : int(c.kv_lengths.max()) - 1, :] if n in _PRESENT else x
                                   for n, x in o.items()}, lambda c: c.kv_lengths is not None and _past(c)),
           features=("kv_lengths",)),
    Defect("present-cleared-beyond-length",
           "Slots beyond kv_lengths are zero in present_key and present_value.", ("CACHE-4",),
           after("finish",
                 lambda c, o: {n: (x * (c.columns < c.kv_lengths[..., None, None])[..., None]).astype(x.dtype)
                                   if n in _PRESENT else x for n, x in o.items()},
                 lambda c: c.kv_lengths is not None and _past(c)), features=("kv_lengths",)),
    Defect("present-in-bfloat16", "present_key and present_value went through bfloat16.",
           ("CACHE-2", "NUM-1"),
           _present(lambda c, x: x.astype(np.float32).astype("bfloat16").astype(x.dtype)),
           unobservable={"bfloat16": "it is bfloat16"}),
    Defect("causal-ignores-past", "Causality numbers the keys without the past.", ("CACHE-3", "MASK-6"),
           {"by_causal": lambda c, place: c.columns - c.past <= place if c.is_causal else None},
           features=("is_causal",)),
    Defect("offset-defaults-to-past",
           "Without q_offset the queries are put behind the past, though they are as many as past and new keys.",
           ("CACHE-3", "MASK-6", "MASK-10"),
           {"place": lambda c: R.place(c) + (c.past if c.q_offset is None else 0)}),
    Defect("causal-counts-past-again",
           "The length of the past is added to q_offset: the caller's already counts it, so queries see the future.",
           ("CACHE-3", "MASK-8"), {"place": lambda c: R.place(c) + c.past}, features=("q_offset",)),
    Defect("window-ignores-past", "The window numbers the keys without the past.", ("CACHE-3", "MASK-10"),
           {"by_window": lambda c, place: R.by_window(c, place + c.past)}, features=("window",)),
    Defect("mask-of-new-keys",
           "The mask starts at the new keys and leaves the past open: it counts the past.",
           ("CACHE-3",), _new_columns("mask"), features=("mask",)),
    Defect("bias-of-new-keys", "The bias starts at the new keys: it counts the past.",
           ("CACHE-3",), _new_columns("attn_bias"), features=("attn_bias",)),
    Defect("decode-sees-new-key-only", "A single new query attends its own key and not the past.",
           ("CACHE-1",),
           {"by_lengths": lambda c: c.columns >= c.past if c.q_len == 1 and c.past else R.by_lengths(c)}),
    Defect("weights-without-past", "Your weights leave out the past.", ("CACHE-3", "ATT-13"),
           output(lambda c, x: x[..., c.past :], "weights"), features=("return_weights",)),
    Defect("layer-biases-past-again", "b_k and b_v are added to the past again, which holds them already.",
           ("CACHE-1", "CACHE-2"),
           {"join": lambda c, k, v: R.join(replace(c, past_key=_biased(c, c.widen(c.past_key), c.b_k),
                        past_value=_biased(c, c.widen(c.past_value), c.b_v)), k, v) if _past(c) else (k, v)}),
    Defect("layer-present-without-bias", "present_key of the layer lacks b_k.", ("CACHE-2", "PROJ-2"),
           after("finish",
                 lambda c, o: o | {"present_key": R.join(c, project(c, c.key, c.w_k, None),
                                       R.project_value(c))[0].astype(c.dtype)},
                 lambda c: c.layer and _past(c))),
    Defect("cached-keys-scaled",
           "New keys are scaled before they are cached, and those of the past are not scaled at all.",
           ("CACHE-2", "ATT-3"),
           {"project_key": lambda c: R.project_key(c) * c.wide(R.scale(c)), "scale": lambda c: 1.0}),
))  # fmt: skip
