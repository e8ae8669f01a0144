"""Parts that stand one behind the other: which rows belong to a part, and what counts from its start."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import without
from conformance.defects.serving.steps import attention
from conformance.vectors.case import Array

Part = tuple[slice, dict[str, Any]]


def _part(change: Callable[[Served, int, slice, dict[str, Any]], Part]) -> Change:
    """What a part is, changed."""
    return {"part": lambda p, i: change(p, i, *R.part(p, i))}


def _keys(bounds: Callable[[Served, int], tuple[int, int]]) -> Change:
    """Other keys than those of the part."""

    def change(p: Served, i: int, rows: slice, part: dict[str, Any]) -> Part:
        first, end = bounds(p, i)
        keys = slice(max(first, 0), max(end, 0))
        arrays = {"key": p.key[:, keys], "value": p.value[:, keys]}
        return rows, {
            **part,
            **arrays,
            "q_offset": part["q_offset"] or 0,
        }  # lengths that agreed may not do so now

    return _part(change)


def _offset(number: Callable[[Served, int, Any, dict[str, Any]], Any]) -> Change:
    """Another offset, where there is one."""

    def change(p: Served, i: int, rows: slice, part: dict[str, Any]) -> Part:
        if not p.is_causal and p.window is None:
            return rows, part
        return rows, {**part, "q_offset": number(p, i, part["q_offset"], part)}

    return _part(change)


def _late(p: Served, i: int) -> int:
    """How far the queries of a part start behind its keys, in the arrays."""
    return int(p.q_starts[i]) - int(p.kv_starts[i])


def _each(change: Callable[[Served, int, slice, dict[str, Array]], dict[str, Array]]) -> Change:
    """The result of each part, changed before it is put into its rows."""

    def packed(s: Any, p: Served) -> dict[str, Array]:
        whole: dict[str, Array] = R.packed(s, p)
        for i in range(p.parts):
            rows, _ = s.part(p, i)
            found = {name: array[:, rows] for name, array in whole.items()}
            for name, array in change(p, i, rows, found).items():
                whole[name][:, rows] = array
        return whole

    return {"packed": packed}


def _without_keys(output: float, lse: float) -> Change:
    """What rows of a part without keys get."""

    def change(p: Served, i: int, rows: slice, found: dict[str, Array]) -> dict[str, Array]:
        if p.kv_starts[i] != p.kv_starts[i + 1]:
            return found
        return {name: np.full_like(x, lse if name == "lse" else output) for name, x in found.items()}

    return _each(change)


def _one_call(hide: bool) -> Callable[[Any, Served], dict[str, Array]]:
    """All parts in one call; where keys of others are hidden, by a number that is added and not by selection."""

    def packed(s: Any, p: Served) -> dict[str, Array]:
        queries, keys = int(p.q_starts[-1]), int(p.kv_starts[-1])
        arrays = p.query[:, :queries], p.key[:, :keys], p.value[:, :keys]
        options = {**p.options, "is_causal": False, "window": None, "q_offset": None}
        if hide:
            q_part, k_part = (
                np.searchsorted(starts, np.arange(n), side="right")
                for starts, n in ((p.q_starts, queries), (p.kv_starts, keys))
            )
            bias = np.where(q_part[:, None] == k_part, 0.0, -1e9 if p.query.dtype != np.float16 else -6e4)
            options["attn_bias"] = bias.astype(p.query.dtype)
        found = attention(s, *arrays, **options)
        whole = {}
        for name, x in found.items():
            whole[name] = np.zeros((p.query.shape[0], p.query.shape[1], *x.shape[2:]), x.dtype)
            whole[name][:, :queries] = x
        return whole

    return packed


def _plain(change: Change, instead: Any) -> Change:
    """A change for calls without causality and window; others as they are."""
    return {
        "packed": lambda s, p: R.packed(s, p) if p.is_causal or p.window is not None else instead(s, p),
        **change,
    }


def _dense_lengths(p: Served, i: int) -> tuple[int, int]:
    """As long as the first part, one behind the other."""
    length = int(p.kv_starts[1]) if p.parts else 0
    return i * length, (i + 1) * length


def _distinct(p: Served, i: int) -> tuple[int, int]:
    """The keys of the part with the number that is left once parts without queries are dropped, but not their keys."""
    number = len(np.unique(p.q_starts[: i + 1])) - 1
    return int(p.kv_starts[number]), int(p.kv_starts[number + 1])


def _tile(size: int) -> Callable[[Any, Served], dict[str, Array]]:
    """Whole tiles of rows are written, by the last part first: what is behind a part is zero after it."""

    def packed(s: Any, p: Served) -> dict[str, Array]:
        whole: dict[str, Array] = R.packed(s, p)
        right = {name: array.copy() for name, array in whole.items()}
        for i in reversed(range(p.parts)):
            rows, _ = s.part(p, i)
            end = rows.start + -(-(rows.stop - rows.start) // size) * size
            for name, array in whole.items():
                array[:, rows] = right[name][:, rows]
                array[:, rows.stop : end] = 0
        return whole

    return packed


def _accepting(*checks: str, then: Callable[[Served], Served] = lambda p: p) -> Change:
    """Checks that are missing, and what is made of the call."""
    return {"serving_checks": without(*checks), "packed": lambda s, p: R.packed(s, then(p))}


def _sorted(p: Served) -> Served:
    return replace(p, q_starts=np.sort(p.q_starts), kv_starts=np.sort(p.kv_starts))


def _first_offset(p: Served, i: int, offset: Any, part: dict[str, Any]) -> Any:
    return p.q_offset[0] if np.ndim(p.q_offset) else offset


def _no_sink(p: Served, i: int, rows: slice, part: dict[str, Any]) -> Part:
    return rows, {**part, "sinks": part["sinks"] if i == 0 else None}


DEFECTS = needing("packed", (
    Defect("packed-parts-see-each-other", "Every query of a packed call attends the keys of all parts.",
           ("PACK-1",), _plain({}, _one_call(hide=False))),
    Defect("packed-other-parts-hidden-by-a-number",
           "The keys of other parts are hidden by a large negative number, so that a NaN among them counts.",
           ("PACK-1",), _plain({}, _one_call(hide=True))),
    Defect("packed-query-starts-for-keys", "The keys of a part are taken from the starts of the queries.",
           ("PACK-1",), _keys(lambda p, i: (int(p.q_starts[i]), int(p.q_starts[i + 1])))),
    Defect("packed-last-key-of-part-too-many",
           "The end of a part counts as one of its keys, so that it reads the first key of the next part.",
           ("PACK-1",), _keys(lambda p, i: (int(p.kv_starts[i]), int(p.kv_starts[i + 1]) + 1))),
    Defect("packed-last-key-of-part-left-out", "The last key of each part is left out.",
           ("PACK-1",), _keys(lambda p, i: (int(p.kv_starts[i]), int(p.kv_starts[i + 1]) - 1))),
    Defect("packed-parts-as-long-as-the-first",
           "All parts are taken to have as many keys as the first, one behind the other.",
           ("PACK-1",), _keys(_dense_lengths)),
    Defect("packed-starts-read-as-lengths",
           "The next start of the keys is taken for the number of keys of the part.", ("PACK-1",),
           _keys(lambda p, i: (int(p.kv_starts[i]), int(p.kv_starts[i]) + int(p.kv_starts[i + 1])))),
    Defect("packed-part-without-queries-dropped",
        "Parts without queries are dropped and their keys are not, so that later parts read the keys of earlier ones.",
        ("PACK-4",), _keys(_distinct), origin="Dao-AILab/flash-attention#1537"),
    Defect("packed-part-without-keys-is-nan",
           "Queries of a part without keys get NaN, as nothing is divided by a sum of nothing.",
           ("PACK-4", "MASK-3"), _without_keys(np.nan, -np.inf), origin="facebookresearch/xformers#1042"),
    Defect("packed-lse-without-keys-is-plus-infinity",
           "The lse of queries of a part without keys is +inf, which outweighs every other part in a merge.",
           ("PACK-4", "ATT-14"), _without_keys(0.0, np.inf),
           origin="deepseek-ai/FlashMLA#77", features=("return_lse",)),
    Defect("packed-lse-without-keys-is-zero",
           "The lse of queries of a part without keys is 0, as of memory that nobody wrote.",
           ("PACK-4", "ATT-14"), _without_keys(0.0, 0.0), features=("return_lse",)),
    Defect("packed-part-without-keys-reads-the-one-before",
           "Queries of a part without keys attend the last key before it.", ("PACK-4",),
           _keys(lambda p, i: (min(int(p.kv_starts[i]), max(int(p.kv_starts[i + 1]) - 1, 0)),
                               int(p.kv_starts[i + 1])))),
    Defect("packed-causality-by-places-in-the-arrays",
           "Causality and window compare places in the whole arrays, so that the starts of a part count.",
           ("PACK-2",), _offset(lambda p, i, offset, part: int(offset or 0) + _late(p, i))),
    Defect("packed-query-start-added-to-places",
           "The place of a query counts from the start of the array, that of a key from the start of its part.",
           ("PACK-2",), _offset(lambda p, i, offset, part: int(offset or 0) + int(p.q_starts[i]))),
    Defect("packed-key-start-added-to-places",
           "The place of a key counts from the start of the array, that of a query from the start of its part.",
           ("PACK-2",), _offset(lambda p, i, offset, part: int(offset or 0) - int(p.kv_starts[i]))),
    Defect("packed-first-offset-for-all-parts", "The offset of the first part serves all.",
           ("PACK-3",), _offset(_first_offset), features=("q_offset",)),
    Defect("packed-last-query-at-last-key",
           "The last query of each part is put at its last key, whatever the offset.", ("PACK-3", "MASK-8"),
           _offset(lambda p, i, offset, part: part["key"].shape[1] - part["query"].shape[1]),
           origin="FlashAttention"),
    Defect("packed-offset-left-out",
           "The offset is left out: the first query of each part is put at its first key.",
           ("PACK-3", "MASK-8"), _offset(lambda p, i, offset, part: 0), features=("q_offset",)),
    Defect("packed-sink-in-the-first-part-only", "Sinks count in the first part only.",
           ("PACK-1", "ATT-12"), _part(_no_sink), features=("sinks",)),
    Defect("packed-tile-written-over-the-next-part",
           "Whole tiles of 4 rows are written, so that the end of a part falls over the first rows of the next one.",
           ("PACK-1",), {"packed": _tile(4)}, detail="tiles of 4",
           variants={f"tiles of {size}": {"packed": _tile(size)} for size in (2, 8, 16, 32, 64)}),
    Defect("packed-lse-in-base-two", "The lse of a packed call is the logarithm to base 2.",
           ("PACK-1", "ATT-14"),
           _each(lambda p, i, rows, found: {**found, "lse": found["lse"] / np.log(2)} if p.return_lse
                     else found), origin="lightseekorg/tokenspeed#571", features=("return_lse",)),
    Defect("packed-rows-of-no-part-read", "Keys behind the last part count as keys of the last part.",
           ("PACK-5",),
           _keys(lambda p, i: (int(p.kv_starts[i]),
                               p.key.shape[1] if i == p.parts - 1 else int(p.kv_starts[i + 1])))),
    Defect("packed-falling-starts-accepted", "Starts that fall are put in order.",
           ("PACK-6",), _accepting("falling starts", then=_sorted), features=("validation",)),
    Defect("packed-first-start-accepted", "A first start that is not zero is accepted.",
           ("PACK-6",), _accepting("first start"), features=("validation",)),
    Defect("packed-last-start-accepted", "A last start behind the array is accepted, and read as its end.",
           ("PACK-6",), _accepting("last start"), features=("validation",)),
    Defect("packed-starts-of-two-lengths-accepted",
           "More starts of keys than of queries are accepted, and those left over dropped.",
           ("PACK-6",), _accepting("starts of two lengths"), features=("validation",)),
    Defect("packed-offsets-of-another-length-accepted",
           "More offsets than parts are accepted, and those left over dropped.",
           ("PACK-3",), _accepting("offsets of parts"), features=("validation",)),
))  # fmt: skip
