"""The operands of spec/serving.md, laid out from those of a call of attention whose entries they hold.

What is unusual in how they lie is a letter of `Recipe.layout`; `UNUSUAL` says what each means.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.exploring.counter import Dice, grid, key
from conformance.exploring.counts import lengths, queries
from conformance.exploring.recipe import Recipe
from conformance.names import APPEND, LATENT, MERGE, PACKED, PAGED
from conformance.vectors.case import Array

UNUSUAL = {
    PACKED: {"u": "rows that belong to no part", "n": "a part whose values are NaN"},
    PAGED: {
        "p": "pages in no order",
        "s": "a page in several places",
        "u": "pages that no table names",
        "x": "a column of the table that no entry needs",
        "m": "-1 in the table behind the length",
        "o": "a page that is not there in the table behind the length",
        "h": "the largest integer in the table behind the length",
        "e": "a slot of -1",
    },
    APPEND: {"p": "slots in no order", "e": "a slot of -1"},
    LATENT: {},
    MERGE: {"e": "an empty partial result", "a": "a row of which every partial result is empty"},
}
"""Operation -> letter -> what is meant."""
COVERS = {
    (PACKED, "u"): "PACK-5", (PACKED, "n"): "PACK-1",
    (PAGED, "p"): "PAGE-1", (PAGED, "s"): "PAGE-3", (PAGED, "e"): "PAGE-8",
    **dict.fromkeys(((PAGED, letter) for letter in "uxmoh"), "PAGE-2"),
    (APPEND, "p"): "PAGE-7", (APPEND, "e"): "PAGE-8", (MERGE, "e"): "MERGE-4", (MERGE, "a"): "MERGE-4",
}  # fmt: skip
"""Operation and letter -> the requirement that it is about."""
SAME_LAYOUT = 30
"""Streams so far apart share pages, count spare rows and hold whole numbers alike."""
OTHER = 3.0
"""What stands where nobody reads, unless it is NaN."""
HUGE = 2**31 - 1
EMPTY = 30
"""How many of a hundred partial results of a row are empty."""


def dense_shapes(r: Recipe) -> dict[str, tuple[int, ...]]:
    """The shapes of the operands that are laid out: those of a call of attention, as far as there is one."""
    shapes: dict[str, tuple[int, ...]]
    if r.operation == APPEND:
        shapes = {"key": (r.groups, r.slots, r.d_k), "value": (r.groups, r.slots, r.d_v)}
        return shapes | {"new_key": (r.groups, r.q_len, r.d_k), "new_value": (r.groups, r.q_len, r.d_v)}
    if r.operation == MERGE:
        rows = (r.kv_len, *r.batch, r.heads, r.q_len)
        return {"key": rows, "value": (*rows, r.d_v)}
    shapes = {"query": (*r.batch, r.heads, r.q_len, r.d_k), "key": (*r.batch, r.groups, r.slots, r.d_k)}
    return shapes if r.operation == LATENT else {**shapes, "value": (*r.batch, r.groups, r.slots, r.d_v)}


def lay_out(r: Recipe, dense: Mapping[str, Array]) -> dict[str, Array]:
    """Every array of the call, by argument name, from those of its call of attention."""
    made = _MADE[r.operation](r, dense)
    kept = {name: dense[name] for name in ("mask", "attn_bias", "sinks", "q_offset") if name in dense}
    return {**made, **kept}


def hollow(r: Recipe) -> bool:
    """Whether an operand has no element."""
    if r.operation == PACKED:
        counts = zip((queries(r), lengths(r)), spare(r), strict=True)
        own_offsets = r.offset is not None and not isinstance(r.offset, int)
        return any(int(of.sum()) + more == 0 for of, more in counts) or (own_offsets and not r.entries)
    if r.operation == APPEND:
        return 0 in (r.q_len, r.slots)
    if r.operation == PAGED and r.written:
        added = int(np.minimum(lengths(r), r.written).sum()) + ("e" in r.layout)
        return 0 in (*r.batch, r.q_len, r.columns, added)
    return 0 in (*r.batch, r.q_len, r.slots)


def rows_there(r: Recipe) -> Array:
    """Queries of entries that have any key, [B, q_len]: only theirs can be empty rows that need a feature."""
    there: Array = np.arange(r.q_len) < queries(r)[:, None]
    return there & (lengths(r) > 0)[:, None]


def integers(r: Recipe) -> Any:
    """The dtype of starts, tables, lengths and slots."""
    return np.int32 if r.stream % 3 else np.int64


def _unread(r: Recipe) -> float:
    return float("nan") if r.poison else OTHER


# Parts


def spare(r: Recipe) -> tuple[int, int]:
    """Rows of the query, and of key and value, that belong to no part."""
    return (1 + r.stream % 3, 1 + r.stream % 5) if "u" in r.layout else (0, 0)


def _packed(r: Recipe, dense: Mapping[str, Array]) -> dict[str, Array]:
    of_query, of_keys = queries(r), lengths(r)
    more = spare(r)

    def joined(name: str, counts: Array, spare: int) -> Array:
        array = dense[name]  # [n, H or G, length, d]
        if name == "value" and "n" in r.layout and len(array):
            array = array.copy()
            array[r.stream % len(array)] = np.nan
        behind = np.full((array.shape[1], spare, array.shape[3]), _unread(r))
        return np.concatenate(
            [*(x[:, :count] for x, count in zip(array, counts, strict=True)), behind], axis=1
        )

    def starts(counts: Array) -> Array:
        return np.concatenate([[0], np.cumsum(counts)]).astype(integers(r))

    return {
        "query": joined("query", of_query, more[0]),
        "key": joined("key", of_keys, more[1]),
        "value": joined("value", of_keys, more[1]),
        "q_starts": starts(of_query),
        "kv_starts": starts(of_keys),
    }


# Pages


@dataclass(frozen=True)
class Pages:
    """Where the keys of each entry lie."""

    table: Array  # [B, M]
    count: int  # N
    read: Array  # [N, P], the cells that some entry reads
    source: dict[int, tuple[int, int]]  # page -> the entry and the place in its table that it is made of


def pages_of(r: Recipe) -> Pages:
    """Pages for every entry: in order or in none, some of them in several places."""
    held, size = lengths(r), r.page
    needed = -(-held // size)
    owner = {(b, j): _owner(r, needed, b, j) for b in range(r.entries) for j in range(needed[b])}
    own = list(dict.fromkeys(owner.values()))
    count = max(len(own) + (2 if "u" in r.layout else 0), 1)
    order = Dice("pages", r.stream).order(range(count)) if "p" in r.layout else list(range(count))
    number = dict(zip(own, order, strict=False))
    behind = {"m": -1, "o": count, "h": HUGE}
    table = np.full((r.entries, r.columns), next((behind[x] for x in r.layout if x in behind), 0))
    read = np.zeros((count, size), bool)
    for (b, j), of in owner.items():
        table[b, j] = number[of]
        read[number[of], : held[b] - j * size] = True
    return Pages(table, count, read, {page: of for of, page in number.items()})


def _owner(r: Recipe, needed: Array, b: int, j: int) -> tuple[int, int]:
    """Whose page stands at place `j` of entry `b`: its own, or with a page in several places another one."""
    if "s" not in r.layout:
        return b, j
    if r.entries > 1 and r.stream % 2:  # what entries begin with
        return (0, j) if j < -(-min(needed[b], needed[0]) // 2) else (b, j)
    return (b, 0) if j == needed[b] - 1 else (b, j)


def _paged(r: Recipe, dense: Mapping[str, Array]) -> dict[str, Array]:
    pages, of = pages_of(r), integers(r)
    found: dict[str, Array] = {"query": dense["query"]}
    for name in ("key", "value"):
        array = dense[name]  # [B, G, M P, d]
        cells = np.full((pages.count, r.page, r.groups, array.shape[-1]), _unread(r))
        for page, (b, j) in pages.source.items():
            cells[page] = np.moveaxis(array[b, :, j * r.page : (j + 1) * r.page], 0, 1)
        found[f"{name}_pages"] = np.where(pages.read[..., None, None], cells, np.nan) if r.poison else cells
    if r.written:
        found |= _written(r, pages, found)
    return {**found, "page_table": pages.table.astype(of), "kv_lengths": lengths(r).astype(of)}


def _written(r: Recipe, pages: Pages, found: dict[str, Array]) -> dict[str, Array]:
    """The last keys of each entry are new: until the call writes them, something else stands there."""
    slots: dict[int, None] = {}
    for b, length in enumerate(lengths(r)):
        for t in range(max(length - r.written, 0), length):
            slots[int(pages.table[b, t // r.page]) * r.page + t % r.page] = None
    order = Dice("slots", r.stream).order(list(slots)) if "p" in r.layout else list(slots)
    order = [-1, *order] if "e" in r.layout else order
    flat = np.array(order, np.int64)
    new = {"slots": flat.astype(integers(r))}
    for name in ("key", "value"):
        cells = found[f"{name}_pages"].reshape(-1, *found[f"{name}_pages"].shape[2:])  # [N P, G, d]
        rows = np.where((flat >= 0)[:, None, None], cells[flat], _unread(r))
        cells[flat[flat >= 0]] = _unread(r)
        new[f"new_{name}"] = rows
    return new


def _skipped(r: Recipe, t: int) -> bool:
    """Whether new row `t` of `append_to_pages` has the slot -1."""
    return "e" in r.layout and t % 3 == 1


def rows_written(r: Recipe) -> int:
    """New rows of `append_to_pages` that have a slot."""
    return sum(not _skipped(r, t) for t in range(r.q_len))


def _append(r: Recipe, dense: Mapping[str, Array]) -> dict[str, Array]:
    cells = r.slots
    order = Dice("slots", r.stream).order(range(cells)) if "p" in r.layout else list(range(cells))
    left = iter(order)
    slots = [-1 if _skipped(r, t) else next(left) for t in range(r.q_len)]
    flat = np.array(slots, np.int64)
    found: dict[str, Array] = {"slots": flat.astype(integers(r))}
    for name in ("key", "value"):
        pages = np.moveaxis(dense[name], 0, 1)  # [N P, G, d]
        if r.poison:
            pages = np.where((np.arange(cells) % 3 == 1)[:, None, None], np.nan, pages)
            pages[2::3, :, 0] = -0.0
        found[f"{name}_pages"] = pages.reshape(r.columns, r.page, *pages.shape[1:])
        new = np.moveaxis(dense[f"new_{name}"], 0, 1)  # [T, G, d]
        found[f"new_{name}"] = np.where((flat >= 0)[:, None, None], new, _unread(r))
    return found


# Rows, and partial results


def _latent(r: Recipe, dense: Mapping[str, Array]) -> dict[str, Array]:
    rows = dense["key"][..., 0, :, :]
    if r.lengths is None:
        return {"query": dense["query"], "latent": rows}
    held = lengths(r).reshape(r.batch)
    if r.poison:
        rows = np.where((np.arange(r.kv_len) < held[..., None])[..., None], rows, np.nan)
    return {"query": dense["query"], "latent": rows, "kv_lengths": held.astype(integers(r))}


def _merge(r: Recipe, dense: Mapping[str, Array]) -> dict[str, Array]:
    lses = dense["key"]  # [P, ..., H, q_len]
    none = np.zeros(lses.shape, bool)
    if "e" in r.layout:
        none |= (grid(key("empty", r.stream), lses.shape) >> np.uint64(20)) % np.uint64(100) < np.uint64(
            EMPTY
        )
    if "a" in r.layout:
        none[..., key("row", r.stream) % r.q_len] = True
    return {
        "outputs": np.where(none[..., None], _unread(r), dense["value"]),
        "lses": np.where(none, -np.inf, lses),
    }


_MADE: dict[str, Callable[[Recipe, Mapping[str, Array]], dict[str, Array]]] = {
    PACKED: _packed, PAGED: _paged, APPEND: _append, LATENT: _latent, MERGE: _merge,
}  # fmt: skip
