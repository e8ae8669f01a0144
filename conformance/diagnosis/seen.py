"""What may be said of each row of a call: which keys it sees, where it stands; as conditions in words."""

from collections.abc import Iterator

import numpy as np

from conformance.diagnosis.peaks import of_logits
from conformance.names import DENSE
from conformance.vectors.case import Array, Case
from conformance.vectors.case_view import View

TILES = (32, 64, 16, 128, 8, 256)
"""Numbers of keys or queries that kernels take at once, the most usual first: where several fit, that is said."""
LARGE = 2**22
"""Queries times keys of all heads above which a call is not looked into."""


def of_rows(case: Case) -> dict[str, Array] | None:
    """Conditions in words, each with the rows (B, H, q_len) of a call that it holds for; H is 1 for a layer.

    None of what is too large or has no rows of keys.
    """
    view = View(case)
    if case.operation not in DENSE:
        return None
    size = view.sizes
    entries, heads, q_len, kv_len = abs(size["batch"]), size["heads"], size["q_len"], size["kv_len"]
    if not 0 < entries * heads * q_len * max(kv_len, 1) <= LARGE:
        return None
    sees: Array = view.visible.reshape(entries, heads, q_len, kv_len)
    found = of_logits(case, sees)
    if view.layer:
        sees = np.asarray(sees.any(axis=1, keepdims=True))
        found = {words: np.asarray(rows.any(axis=1, keepdims=True)) for words, rows in found.items()}
    found |= dict(_keys(sees))
    found |= dict(_places(view, sees.shape, entries))
    found |= dict(_entries(view, sees))
    return {words: np.broadcast_to(rows, sees.shape[:3]) for words, rows in found.items()}


def several(case: Case) -> Array:
    """The rows (B, H, q_len) that see more than one key: others are right whatever is wrong with logits."""
    view = View(case)
    sees = view.visible.sum(axis=-1) > 1
    sees = sees.reshape(abs(view.sizes["batch"]), *sees.shape[-2:])
    return np.asarray(sees.any(axis=1, keepdims=True) if view.layer else sees)


def _keys(sees: Array) -> Iterator[tuple[str, Array]]:
    """By what is visible (B, H, q_len, kv_len)."""
    number, kv_len = sees.sum(axis=-1), sees.shape[-1]
    some = number > 0
    first = np.where(some, sees.argmax(axis=-1) if kv_len else 0, kv_len)
    last = np.where(some, kv_len - 1 - (sees[..., ::-1].argmax(axis=-1) if kv_len else 0), -1)
    yield "that see no key", ~some
    yield "that do not see the first key", first > 0
    yield "that do not see the last key", last < kv_len - 1
    yield "that see all keys", number == kv_len
    yield "that do not see all keys", number < kv_len
    yield "with a hidden key between visible ones", some & (last - first + 1 > number)
    for tile in TILES:
        yield f"that see none of the first {tile} keys", first >= min(tile, kv_len)
        yield f"that see a key, but none of the first {tile}", some & (first >= tile)
        yield f"that see more than {tile} keys", number > tile
        yield f"that see a key behind the first {tile}", last >= tile
        whole = np.arange(kv_len) // tile
        full = np.zeros((*number.shape, 0), bool)
        if kv_len:
            full = np.logical_or.reduceat(sees, np.flatnonzero(np.diff(whole, prepend=-1)), axis=-1)
        tiles = np.arange(full.shape[-1])
        between = ~full & (tiles > (first // tile)[..., None]) & (tiles < (last // tile)[..., None])
        yield f"with a hidden tile of {tile} keys between visible ones", some & between.any(axis=-1)
        yield f"whose last key is not the last of a tile of {tile}", some & ((last + 1) % tile != 0)
        yield f"whose first key is not the first of a tile of {tile}", some & (first % tile != 0)


def _places(view: View, shape: tuple[int, ...], entries: int) -> Iterator[tuple[str, Array]]:
    """By where a row stands in its call."""
    q_len, size = shape[2], view.sizes
    query, head = np.arange(q_len), np.arange(shape[1])[:, None]
    entry = np.arange(entries)[:, None, None]
    group = 1 if view.layer else max(size["heads"] // max(size["kv_heads"], 1), 1)
    offset = np.asarray(view.case.inputs.get("q_offset", view.case.options.get("q_offset") or 0))
    place = query + offset.reshape(-1, 1, 1)
    yield "of the first query", query == 0
    yield "behind the first query", query > 0
    yield "of the last query", query == q_len - 1
    yield "before the last query", query < q_len - 1
    yield "of the first batch entry", entry == 0
    yield "behind the first batch entry", entry > 0
    yield "of the last batch entry", entry == entries - 1
    yield "before the last batch entry", entry < entries - 1
    yield "of the first head", head == 0
    yield "behind the first head", head > 0
    yield "of another query head than the first of a key head", head % group > 0
    yield "of another key head than the first", head // group > 0
    yield "at a place before the first key", place < 0
    yield "at a place behind the last key", place >= size["kv_len"]
    for tile in (4, *TILES):
        yield f"from query {tile} on", query >= tile
        yield f"of the queries behind the last whole {tile}", (query >= q_len // tile * tile) & (q_len > tile)
        yield f"of the first {tile} queries", query < tile
        yield f"from place {tile} on", place >= tile
        yield (
            f"from packed row {tile} on (query times heads of a key head)",
            query * group + head % group >= tile,
        )


def _entries(view: View, sees: Array) -> Iterator[tuple[str, Array]]:
    """By the length of their batch entry."""
    kv_len = view.sizes["kv_len"]
    given = view.case.inputs.get("kv_lengths")
    length: Array = np.asarray([kv_len] if given is None else given, np.int64).reshape(-1, 1, 1)
    longest = length == length.max(initial=0)
    yield "of batch entries of length 0", length <= 0
    yield "of batch entries shorter than the keys", length < kv_len
    yield "of batch entries that have not the most keys", ~longest
    yield "of batch entries that have the most keys", longest
    order = np.argsort(-length.reshape(-1), kind="stable")
    turn = (order != np.arange(len(order))).reshape(-1, 1, 1)
    yield "of batch entries out of the order of length", turn
    for tile in TILES:
        short = length < kv_len
        yield f"of batch entries whose length is no multiple of {tile}", length % tile != 0
        yield (
            f"of batch entries whose length below the keys is no multiple of {tile}",
            short & (length % tile != 0),
        )
        yield f"of batch entries of more than {tile} keys", length > tile
