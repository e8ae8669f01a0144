"""Axes that are exchanged by a reshape, which leaves the numbers where they are in memory, and orders of heads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

PRESENT = ("present_key", "present_value")


def mixed(x: Array, one: int = -3, two: int = -2) -> Array:
    """Memory with two axes exchanged, read as if they were not."""
    return np.ascontiguousarray(x.swapaxes(one, two)).reshape(x.shape)


def read(x: Array, one: int = -3, two: int = -2) -> Array:
    """The reverse: memory read as if two axes were exchanged, and put in order."""
    shape = list(x.shape)
    shape[one], shape[two] = shape[two], shape[one]
    return np.ascontiguousarray(x).reshape(shape).swapaxes(one, two)


def _lse(c: Call, x: Array) -> Array:
    return mixed(x, -2, -1)


def _operands(*names: str) -> Change:
    """Operands of the attention that are read in another order of axes."""

    def accept(c: Call) -> Call:
        changed: dict[str, Any] = {name: read(getattr(c, name)) for name in names}
        return c if c.layer else replace(c, **changed)

    return {"accept": accept}


def _past(c: Call) -> Call:
    if c.past_key is None:
        return c
    return replace(c, past_key=read(c.past_key), past_value=read(c.past_value))


def _attention(change: Callable[[Call, Array], Array]) -> Change:
    """The output of the attention itself, not of the layer."""
    return output(change, "output", when=lambda c: not c.layer)


def _grouped(c: Call) -> Array:
    """For each query head in order of key head and place in its group: the head of place, then key head."""
    order: Array = np.arange(c.heads).reshape(-1, c.kv_heads).T.ravel()
    return order


def _regrouped(name: str, axis: int) -> Change:
    """Something of each head that is read as if heads were ordered by place in the group, then key head."""

    def accept(c: Call) -> Call:
        x = getattr(c, name)
        if x is None or x.ndim < -axis or x.shape[axis] != c.heads:
            return c
        moved: Any = np.take(x, _grouped(c), axis=axis)
        return replace(c, **{name: moved})

    return {"accept": accept}


def _per_entry(c: Call, x: Any, own: int) -> Any:
    """What batch entry b and head h read if copies for the heads lie one behind the other: entry (b * H + h) % B."""
    if x is None or len(c.batch) != 1 or np.ndim(x) < own or x.shape[0] != c.batch[0] or x.shape[0] == 0:
        return None
    entries, heads = np.ogrid[: c.batch[0], : c.heads]
    return (entries * c.heads + heads) % c.batch[0]


def _tiled_mask(name: str) -> Change:
    """A mask or bias without heads, copied for each head behind the other."""

    def accept(c: Call) -> Call:
        x = getattr(c, name)
        if x is None or x.ndim != 4 or x.shape[1] != 1 or (index := _per_entry(c, x, 4)) is None:
            return c
        return replace(c, **{name: x[index, 0]})

    return {"accept": accept}


def _tiled_lengths(c: Call) -> Any:
    index = _per_entry(c, c.kv_lengths, 1)
    if index is None:
        return R.by_lengths(c)
    return c.columns < c.kv_lengths[index][..., None, None]


def _tiled_places(c: Call) -> Any:
    offset = None if c.q_offset is None else np.asarray(c.q_offset)
    index = None if offset is None or not offset.ndim else _per_entry(c, offset, 1)
    if offset is None or index is None:
        return R.place(c)
    return np.arange(c.q_len)[:, None] + offset[index][..., None, None]


DEFECTS = (
    Defect("lse-axes-mixed-by-reshape",
           "Your lse is computed with the length before the heads, and reshaped where these axes have to be swapped.",
           ("ATT-14",), output(_lse, "lse"), features=("return_lse",)),
    Defect("weights-axes-mixed-by-reshape",
           "Your weights are computed with queries before heads, and reshaped where these axes have to be swapped.",
           ("ATT-13",), output(lambda c, x: mixed(x), "weights"), features=("return_weights",)),
    Defect("weights-transposed-by-reshape",
           "Your weights are computed with keys before queries, and reshaped where these axes have to be swapped.",
           ("ATT-13",), output(lambda c, x: mixed(x, -2, -1), "weights"), features=("return_weights",)),
    Defect("output-axes-mixed-by-reshape",
        "Your output is computed with the length before the heads, and reshaped where these axes have to be swapped.",
        ("SHAPE-2",), _attention(lambda c, x: mixed(x))),
    Defect("output-width-mixed-by-reshape",
        "Your output is computed with the width before the length, and reshaped where these axes have to be swapped.",
        ("SHAPE-2",), _attention(lambda c, x: mixed(x, -2, -1))),
    Defect("query-axes-mixed-by-reshape",
           "The query is brought to length before heads by a reshape: swap the axes.",
           ("SHAPE-1", "HEAD-1"), _operands("query")),
    Defect("keys-axes-mixed-by-reshape",
           "Key and value are brought to length before heads by a reshape: swap the axes.",
           ("SHAPE-1", "HEAD-1"), _operands("key", "value"), detail="both",
           variants={"the key alone": _operands("key"), "the value alone": _operands("value")}),
    Defect("operands-axes-mixed-by-reshape",
           "All operands are brought to length before heads by a reshape: swap the axes.",
           ("SHAPE-1", "HEAD-1"), _operands("query", "key", "value"), detail="the output is in order",
           variants={"the output is reshaped back too": {**_operands("query", "key", "value"),
                         **_attention(lambda c, x: mixed(x))}}),
    Defect("key-width-mixed-by-reshape", "The key is transposed by a reshape: swap its length and width.",
           ("SHAPE-1", "ATT-1"), {"score": lambda c, q, k, scale: R.score(c, q, read(k, -2, -1), scale)}),
    Defect("past-axes-mixed-by-reshape",
           "The past is kept with the length before the heads, and reshaped where these axes have to be swapped.",
           ("CACHE-1",), {"accept": _past}, features=("cache",)),
    Defect("present-axes-mixed-by-reshape",
           "present_key and present_value come out of memory with length before heads: swap the axes, not reshape.",
           ("CACHE-2",), output(lambda c, x: mixed(x), *PRESENT), features=("cache",)),
    Defect("present-lengths-before-heads", "present_key and present_value have the length before the heads.",
           ("CACHE-2",), output(lambda c, x: x.swapaxes(-3, -2), *PRESENT),
           features=("cache",), detail="both",
           variants={f"{n} alone": output(lambda c, x: x.swapaxes(-3, -2), n) for n in PRESENT}),
    Defect("present-key-transposed", "present_key has the width before the length.",
           ("CACHE-2",), output(lambda c, x: x.swapaxes(-2, -1), "present_key"), features=("cache",)),
    Defect("present-heads-merged", "present_key and present_value have their heads merged into the width.",
           ("CACHE-2",),
           output(lambda c, x: x.swapaxes(-3, -2).reshape(*x.shape[:-3], x.shape[-2], -1), *PRESENT),
           features=("cache",)),
    Defect("heads-ordered-by-place-in-group",
        "What is given for each head is read as if heads were ordered by place in the group first, then by key head.",
        ("HEAD-2", "ATT-12", "MASK-1", "ATT-7"), _regrouped("sinks", -1),
        features=("gqa",), detail="the sinks",
        variants={"the mask": _regrouped("mask", -3), "attn_bias": _regrouped("attn_bias", -3)}),
    Defect("output-ordered-by-place-in-group",
           "Your heads come out ordered by their place in the group first, then by key head.", ("HEAD-2",),
           after("average", lambda c, x: np.take(x, np.argsort(_grouped(c)), axis=-3)), features=("gqa",)),
    Defect("copied-per-head-in-wrong-order",
        "What is given for each batch entry is copied H times as a whole, where each entry has to be repeated H times.",
        ("IND-3", "MASK-1", "ATT-7", "MASK-12", "MASK-8"), _tiled_mask("mask"), detail="the mask",
        variants={"attn_bias": _tiled_mask("attn_bias"), "kv_lengths": {"by_lengths": _tiled_lengths},
                  "q_offset": {"place": _tiled_places}}),
)  # fmt: skip
