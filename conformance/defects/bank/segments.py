"""Segments: numbers that are compared otherwise, or not everywhere."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import back, dropped, shown
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

_BOTH = ("q_segments", "kv_segments")
_ASKED = ("segments",)
Numbers = Callable[[Call, Array], Array]


def _rule(same: Callable[[Call, Array, Array], Any]) -> Change:
    """What is seen of other numbers: c, those of the queries [..., q_len, 1], of the keys [..., 1, kv_len] -> bool."""

    def by_segments(c: Call) -> Any:
        if c.q_segments is None:
            return None
        return same(c, c.q_segments[..., :, None], c.kv_segments[..., None, :])[..., None, :, :]

    return {"by_segments": by_segments}


def _read(change: Numbers, keys: Numbers | None = None) -> Change:
    """Other numbers: c, numbers [..., length] -> numbers; of the keys in another way where one is given."""

    def by_segments(c: Call) -> Any:
        if c.q_segments is None:
            return None
        found: dict[str, Any] = {
            "q_segments": change(c, c.q_segments),
            "kv_segments": (keys or change)(c, c.kv_segments),
        }
        return R.by_segments(replace(c, **found))

    return {"by_segments": by_segments}


def _as(dtype: str) -> Change:
    return _read(lambda c, x: x.astype(dtype))


def _first_entry(c: Call, x: Array) -> Array:
    return x[(0,) * (x.ndim - 1)] if x.size else x


def _as_is(c: Call, x: Array) -> Array:
    return x


def _forgotten(when: Callable[[Call], Any]) -> Change:
    return dropped(*_BOTH, when=lambda c: c.q_segments is not None and when(c))


def _ends(width: int) -> Change:
    """Blocks of keys whose first and last key have one number are taken for all of that number."""

    def numbers(c: Call, x: Array) -> Array:
        x = x.copy()
        for begin in range(0, x.shape[-1], width):
            block = x[..., begin : begin + width]
            same = block[..., :1] == block[..., -1:]
            x[..., begin : begin + width] = np.where(same, block[..., :1], block)
        return x

    return _read(_as_is, numbers)


def _range(width: int) -> Change:
    """Blocks of keys are skipped whose first number is above that of the query, or whose last is below."""

    def same(c: Call, q: Array, kv: Array) -> Array:
        found = q == kv
        for begin in range(0, c.kv_len, width):
            block = kv[..., begin : begin + width]
            found[..., begin : begin + width] &= (block[..., :1] <= q) & (q <= block[..., -1:])
        return found

    return _rule(same)


def _runs(c: Call, x: Array) -> Array:
    """How many runs of equal numbers came before."""
    if not x.shape[-1]:
        return x
    return np.concatenate([np.zeros_like(x[..., :1]), np.cumsum(np.diff(x) != 0, axis=-1)], axis=-1)


def _from_first_to_last(c: Call, q: Array, kv: Array) -> Array:
    same = q == kv
    begun = np.cumsum(same, axis=-1) > 0
    return begun & (np.cumsum(same[..., ::-1], axis=-1)[..., ::-1] > 0)


def _first_run(c: Call, q: Array, kv: Array) -> Array:
    """Keys of the number up to where the first run of it ends."""
    same = q == kv
    ended = (np.cumsum(same, axis=-1) > 0) & ~same
    return same & (np.cumsum(ended, axis=-1) == 0)


def _ranks(x: Array) -> Array:
    """How many tokens before have the same number. [..., length]."""
    same: Array = x[..., :, None] == x[..., None, :]
    found: Array = np.tril(same, -1).sum(axis=-1)
    return found


def _restarted(c: Call, place: Array) -> Any:
    """Causality that counts from where each segment begins."""
    if not c.is_causal or c.q_segments is None or c.past:
        return R.by_causal(c, place)
    of_query, of_key = _ranks(c.q_segments), _ranks(c.kv_segments)
    seen = of_key[..., None, :] <= of_query[..., :, None]
    return seen[..., None, :, :]


def _of_new(c: Call) -> Any:
    """Keys of the past are seen by all."""
    found = R.by_segments(c)
    return None if found is None else found | (c.columns < c.past)


def _unmatched_see_all(c: Call, same: Array) -> Array:
    return np.asarray(same | ~same.any(axis=-1, keepdims=True))


def _unmatched(number: float) -> Change:
    """A number in the output where segments alone leave a row empty."""

    def average(c: Call, weights: Array, value: Array, visible: Array) -> Any:
        heads, found = R.average(c, weights, value, visible), R.by_segments(c)
        if found is None or not c.kv_len:
            return heads
        return np.where(found.any(axis=-1, keepdims=True), heads, c.wide(number))

    return {"average": average}


def _added(c: Call, x: Array) -> Array:
    same = R.by_segments(c)
    return R.bias(c, x) if same is None else R.bias(c, x) + np.where(same, c.wide(0), c.wide(-1e30))


def _shared_by_place(c: Call) -> Any:
    """The numbers of the queries are those of the keys in their places, where both are as many."""
    return R.by_segments(replace(c, kv_segments=c.q_segments) if c.q_len == c.kv_len and not c.past else c)


def _varied(make: Callable[[int], Change], *sizes: int, here: int) -> dict[str, Any]:
    return varied({f"in blocks of {n} keys": make(n) for n in sizes}, f"in blocks of {here} keys")


def _dropped_beside(name: str) -> Change:
    return _forgotten(lambda c: getattr(c, name) not in (None, False) if name == "is_causal" else (
        getattr(c, name) is not None
    ))  # fmt: skip


_BESIDE = {
    "mask": "a mask", "attn_bias": "a bias", "is_causal": "causality", "window": "a window", "kv_lengths": "lengths",
    "sinks": "sinks",
}  # fmt: skip

DEFECTS = (
    Defect("segments-ignored", "The segments are ignored.", ("MASK-17",), dropped(*_BOTH), features=_ASKED),
    Defect("segments-before-are-seen",
           "A key is seen if its number is not above that of the query: numbers have to be equal.",
           ("MASK-17", "MASK-18"), _rule(lambda c, q, kv: kv <= q), features=_ASKED),
    Defect("segments-exchanged", "A query sees the keys of the other segments and not those of its own.",
           ("MASK-17",), _rule(lambda c, q, kv: q != kv), features=_ASKED),
    Defect("segment-zero-is-padding", "Keys of the number 0 are hidden as padding: no number is special.",
           ("MASK-18",), _rule(lambda c, q, kv: (q == kv) & (kv != 0)), "Transformer Engine", _ASKED),
    Defect("segment-zero-sees-all", "Queries of the number 0 see every key: no number is special.",
           ("MASK-18",), _rule(lambda c, q, kv: (q == kv) | (q == 0)), features=_ASKED),
    Defect("segment-negative-is-padding",
           "Keys of a negative number are hidden as padding: no number is special.",
           ("MASK-18",), _rule(lambda c, q, kv: (q == kv) & (kv >= 0)), features=_ASKED),
    Defect("segments-without-sign", "The sign of the numbers is dropped.", ("MASK-18",), _read(lambda c, x: np.abs(x)),
           features=_ASKED),
    Defect("segments-in-eight-bits", "The numbers are kept in 8 bits.", ("MASK-18",), _as("uint8"), features=_ASKED),
    Defect("segments-in-sixteen-bits", "The numbers are kept in 16 bits.", ("MASK-18",), _as("int16"), features=_ASKED),
    Defect("segments-in-int32", "Numbers in int64 are cut to int32.", ("MASK-18",), _as("int32"), features=_ASKED),
    Defect("segments-in-float32", "The numbers are compared in float32.", ("MASK-18",), _as("float32"),
           features=_ASKED),
    Defect("segments-in-the-dtype", "The numbers are compared in the dtype of the operands.",
           ("MASK-18",), _read(lambda c, x: x.astype(c.dtype)), features=_ASKED),
    Defect("segments-of-first-entry", "The numbers of the first batch entry serve all.",
           ("MASK-17",), _read(_first_entry), features=_ASKED),
    Defect("segments-of-keys-of-first-entry",
           "The keys of every batch entry have the numbers of the first entry's.",
           ("MASK-17",), _read(_as_is, _first_entry), features=_ASKED),
    Defect("segments-of-queries-for-keys",
           "With as many queries as keys, the keys have the numbers of the queries.",
           ("MASK-17",), {"by_segments": _shared_by_place}, features=_ASKED),
    Defect("segments-ends-of-blocks",
           "Where the first and the last key of a block have one number, the whole block is taken to have it.",
           ("MASK-17", "MASK-18"), **_varied(_ends, 8, 16, 32, 64, 128, here=128), features=_ASKED),
    Defect("segments-blocks-by-range",
           "A block of keys is skipped by its first and last number, as if the numbers were sorted.",
           ("MASK-18",), **_varied(_range, 8, 16, 32, 64, 128, here=64), features=_ASKED),
    Defect("segments-as-runs",
           "The numbers are replaced by a count of their runs: a number that comes back is another one.",
           ("MASK-18",), _read(_runs), features=_ASKED),
    Defect("segments-from-first-to-last",
           "Every key from the first to the last of the query's number is seen.",
           ("MASK-18", "MASK-17"), _rule(_from_first_to_last), features=_ASKED),
    Defect("segments-first-run-only", "Only the first run of keys of the query's number is seen.",
           ("MASK-18", "MASK-17"), _rule(_first_run), features=_ASKED),
    Defect("segments-restart-causality", "Causality counts from where each segment begins.",
           ("MASK-19",), {"by_causal": _restarted}, features=("segments", "is_causal")),
    Defect("segments-not-of-the-past", "Keys of the past are seen by the queries of every segment.",
           ("MASK-17", "CACHE-3"), {"by_segments": _of_new}, features=("segments", "cache")),
    Defect("segments-query-without-a-key-sees-all", "A query whose number no key has sees every key.",
           ("MASK-20",), shown("by_segments", _unmatched_see_all), features=("segments", "empty")),
    Defect("segments-query-without-a-key-is-nan",
           "A query whose number no key has is NaN: it is an empty row.",
           ("MASK-20", "MASK-3"), _unmatched(np.nan), features=("segments", "empty")),
    Defect("segments-as-large-bias",
           "A large negative number is added for keys of other segments: they have to be left out.",
           ("MASK-17", "MASK-4"), {"bias": _added, "by_segments": lambda c: None},
           "JAX flash_attention for TPU", _ASKED),
    Defect("segments-ignored-in-gradients", "The backward pass ignores the segments.",
           ("GRAD-3", "MASK-17"), back(dropped(*_BOTH)), features=_ASKED),
    Defect("segments-ignored-for-one-query", "The segments are ignored where there is one query.",
           ("MASK-17",), _forgotten(lambda c: c.q_len == 1), features=_ASKED),
    Defect("segments-ignored-beyond-128-keys", "Keys beyond the first 128 are seen whatever their number is.",
           ("MASK-17",), shown("by_segments", lambda c, x: x | (c.columns >= 128)), features=_ASKED),
    Defect("segments-ignored-with-groups",
           "The segments are ignored where several query heads share a key head.",
           ("MASK-17", "HEAD-2"), _forgotten(lambda c: c.heads != c.kv_heads), features=("segments", "gqa")),
    Defect("segments-ignored-by-the-layer", "Your layer ignores the segments.",
           ("MASK-17", "PROJ-7"), _forgotten(lambda c: c.layer), features=_ASKED),
    *(Defect(f"segments-dropped-beside-{name.replace('_', '-')}",
             f"The segments are ignored where {words} {'are' if words.endswith('s') else 'is'} given.",
             ("MASK-17", "MASK-9"), _dropped_beside(name), features=("segments", name))
      for name, words in _BESIDE.items()),
)  # fmt: skip
