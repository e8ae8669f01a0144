"""A call with more queries than its case has, and one with fewer keys that keeps the order of its lengths."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.exploring.vary import LATER, TABLES, Varied, cut, extent
from conformance.vectors.case import Array

LONGEST = 130
"""Keys, or numbers of a key or value, that a call is given."""
COSTLY = 2**14
"""Products of two numbers above which a call is not given more keys or wider ones."""
MOST = 32
"""Queries of a case above which it is not given more."""


def grown(v: Varied, to: int) -> Varied:
    """The call with queries repeated until there are so many; each has the row of a table that it had."""
    found = dict(v.inputs)
    for name in (*LATER, *TABLES, "grad_lse", "q_segments"):
        axis = -1 if name in ("grad_lse", "q_segments") else -2
        if name in found and (name not in TABLES or found[name].shape[-2] > 1):
            rows = np.arange(to) % found[name].shape[axis]
            found[name] = np.take(found[name], rows, axis=axis)
    return replace(v, inputs=found, memory={})


def stretches(v: Varied, axis: str) -> bool:
    """Whether a call may be given more keys, or wider ones, or wider values."""
    known = {"kv_len": ("key", "value"), "d_k": ("query", "key"), "d_v": ("value",)}
    if axis not in known or "past_key" in v.inputs or extent(v, axis) >= LONGEST // 2:
        return False
    work = v.size("q_len") * v.size("heads") * v.size("entries") * v.size("d_k") * v.size("kv_len")
    return 0 < work * LONGEST <= 2**7 * COSTLY * extent(v, axis)


def stretched(v: Varied, axis: str, to: int) -> Varied:
    """The call with an axis made so long by other numbers; a table repeats its columns, and full lengths stay full."""
    found, now = dict(v.inputs), extent(v, axis)
    dice = np.random.default_rng(to)
    at = -2 if axis == "kv_len" else -1
    names = {"kv_len": ("key", "value"), "d_k": ("query", "key"), "d_v": ("value", "grad_output")}[axis]
    for name in names:
        if name in found:
            x = found[name]
            shape = list(x.shape)
            shape[at] = to - now
            more = np.round(np.clip(dice.normal(size=shape), -3, 3) * 16) / 16
            found[name] = np.concatenate([x, more.astype(x.dtype)], axis=at)
    if axis == "kv_len":
        for name in TABLES:
            if name in found and found[name].shape[-1] == now:
                found[name] = np.take(found[name], np.arange(to) % now, axis=-1)
        if "kv_lengths" in found:
            found["kv_lengths"] = np.where(found["kv_lengths"] == now, to, found["kv_lengths"]).astype(
                found["kv_lengths"].dtype
            )
    return replace(v, inputs=found, memory={})


def up_to(v: Varied, fails: Callable[[Varied], bool | None]) -> int | None:
    """The most queries that a failing call may have to fail; None where more of them fail as well."""
    least = v.size("q_len")
    high = 4 * least + 16
    if not 0 < least <= MOST or fails(grown(v, high)) is not False:
        return None
    while high - least > 1:
        middle = (least + high) // 2
        answer = fails(grown(v, middle))
        if answer is None:
            return None
        if answer:
            least = middle
        else:
            high = middle
    beyond = [fails(grown(v, least + more)) for more in (1, 2)]  # an even number may pass where odd ones fail
    return least if beyond == [False, False] else None


def shrunk(v: Varied, axis: str, to: int) -> Varied:
    """The call with an axis of keys cut, where lengths and offsets shrink with it; itself where there are none.

    A length that is cut may be as long as all keys, and an offset may lie behind them: what fails then passes.
    """
    if not _placed(v, axis):
        return v
    before = v.past
    share = (before + to) / max(before + extent(v, axis), 1)
    return _with_places(v, cut(v, axis, to), lambda x: np.ceil(x * share))


def moved(v: Varied, axis: str, to: int) -> Varied:
    """The same, where lengths and offsets are less by as many keys as are cut, so that they differ as they did."""
    if not _placed(v, axis):
        return v
    less = extent(v, axis) - to
    return _with_places(v, cut(v, axis, to), lambda x: np.where(x > 0, np.maximum(x - less, 0), x))


def last(v: Varied, axis: str, to: int) -> Varied:
    """The call with its last so many queries, each at its place; itself where that is about another axis."""
    first = v.size("q_len") - to
    if axis != "q_len" or first <= 0:
        return v
    found, options = dict(v.inputs), dict(v.options)
    for name in (*LATER, *TABLES, "grad_lse", "q_segments"):
        rank = -1 if name in ("grad_lse", "q_segments") else -2
        if name in found and (name not in TABLES or found[name].shape[rank] > 1):
            found[name] = np.take(found[name], np.arange(first, first + to), axis=rank)
    if "q_offset" in found:
        found["q_offset"] = found["q_offset"] + found["q_offset"].dtype.type(first)
    elif v.given("is_causal") or v.given("window"):
        options["q_offset"] = options.get("q_offset", 0) + first
    return replace(v, inputs=found, options=options, memory={})


def _placed(v: Varied, axis: str) -> bool:
    return axis in ("kv_len", "length") and (v.given("kv_lengths") or v.given("q_offset"))


def _with_places(v: Varied, smaller: Varied, change: Callable[[Array], Array]) -> Varied:
    """A smaller call, with the lengths and offsets of the larger one, changed."""
    found, options = dict(smaller.inputs), dict(smaller.options)
    for name in ("kv_lengths", "q_offset"):
        if name in v.inputs:
            found[name] = change(v.inputs[name]).astype(v.inputs[name].dtype)
    if isinstance(options.get("q_offset"), int):
        options["q_offset"] = int(change(np.asarray(options["q_offset"])))
    return replace(smaller, inputs=found, options=options)
