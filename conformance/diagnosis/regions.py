"""Parts of a result that may be wrong alone, in words: rows, keys, heads, batch entries, channels."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from conformance.diagnosis.laid import Laid
from conformance.vectors.case import Array

Region = Callable[[Laid], Array]
"""Which elements of a result it is, broadcastable to the result; ValueError where the result has no such axis."""
TILES = (2, 3, 4, 8, 16, 24, 32, 48, 64, 128, 256)
"""Queries, keys or channels that programs take at once."""
KEYS = (4, 8, 16, 24, 32, 48, 64, 128, 256)
"""Keys of a tile, of which a row may see none."""
NAMES = {"q": ("query", "queries"), "n": ("key", "keys"), "k": ("key", "keys"), "d": ("channel", "channels"),
         "H": ("head", "heads"), "G": ("key head", "key heads"), "B": ("batch entry", "batch entries")}  # fmt: skip
ENDS: dict[str, Callable[[Any, int], Any]] = {
    "at the first {}": lambda i, n: i == 0,
    "at the last {}": lambda i, n: i == n - 1,
    "behind the first {}": lambda i, n: i > 0,
    "before the last {}": lambda i, n: i < n - 1,
}
"""Words -> whether an index `i` of `n` is there."""
BLOCKS: dict[str, Callable[[Any, int, int], Any]] = {
    "behind the first {}": lambda i, n, t: i >= t,
    "at the first {}": lambda i, n, t: i < t,
    "behind the last full tile of {}": lambda i, n, t: i >= n // t * t,
    "in the last tile of {}": lambda i, n, t: i >= max(n - 1, 0) // t * t,
    "before the last tile of {}": lambda i, n, t: i < max(n - 1, 0) // t * t,
    "at the first of each {}": lambda i, n, t: i % t == 0,
    "at the last of each {}": lambda i, n, t: i % t == t - 1,
}
"""Words -> whether an index `i` of `n` is there, where `t` are taken at once."""
ROWS: dict[str, Callable[[Any], Any]] = {
    "in rows that see no key": lambda seen: ~seen.any(-1),
    "in rows that see a single key": lambda seen: seen.sum(-1) == 1,
    "in rows that do not see all keys": lambda seen: ~seen.all(-1),
    "in rows that see all keys": lambda seen: seen.all(-1),
}
"""Words -> whether a row is there, of what it sees, (..., q_len, kv_len)."""
TILED: dict[str, Callable[[Any], Any]] = {
    "in rows that see none of the first {} keys": lambda some: ~some[..., 0],
    "in rows that see a key behind the first {}": lambda some: some[..., 1:].any(-1),
    "in rows that see no key of a tile of {}, and a key behind it": lambda some: (~some & _later(some)).any(
        -1
    ),
    "in rows that see no key of the last tile of {}": lambda some: ~some[..., -1],
}
"""The same, of whether it sees some key of each tile, (..., q_len, tiles)."""


def regions() -> Iterator[tuple[str, Region]]:
    """Parts of a result, the more usual ones first."""
    for words, test in ROWS.items():
        yield words, partial(_row, test=test)
    for axis in "nk":
        yield "at keys that no query sees", partial(_unseen, axis=axis, tile=1)
        yield "at keys that some query does not see which sees others", partial(_partly, axis=axis)
        for tile in KEYS:
            yield (
                f"at keys in tiles of {tile} of which no query sees one",
                partial(_unseen, axis=axis, tile=tile),
            )
    for axis, (one, many) in NAMES.items():
        for words, end in ENDS.items():
            yield words.format(one), partial(_end, axis=axis, test=end)
        for words, block in BLOCKS.items():
            for tile in TILES:
                yield words.format(f"{tile} {many}"), partial(_block, axis=axis, test=block, tile=tile)
    for words, group in GROUPS.items():
        yield words, partial(_grouped, test=group)
    for words, tiled in TILED.items():
        for tile in KEYS:
            yield words.format(tile), partial(_tiled, test=tiled, tile=tile)
    yield "in batch entries whose `kv_lengths` is below the number of keys", _short
    yield "in batch entries whose `kv_lengths` is not that of the first", partial(_other, name="kv_lengths")
    yield "in batch entries whose `q_offset` is not that of the first", partial(_other, name="q_offset")


GROUPS: dict[str, Callable[[Any, int], Any]] = {
    "in the first head of each group": lambda h, share: h % share == 0,
    "in the last head of each group": lambda h, share: h % share == share - 1,
    "behind the first head of each group": lambda h, share: h % share > 0,
    "before the last head of each group": lambda h, share: h % share < share - 1,
}
"""Words -> whether a query head is there, of the heads that share a key head."""


def _row(laid: Laid, test: Callable[[Any], Any]) -> Array:
    return laid.along("q", test(laid.visible))


def _tiled(laid: Laid, test: Callable[[Any], Any], tile: int) -> Array:
    return laid.along("q", test(_some(laid.visible, tile)))


def _some(seen: Any, tile: int) -> Array:
    """Whether some key of each tile is seen, (..., tiles); at least one tile."""
    if not seen.shape[-1]:
        return np.zeros((*seen.shape[:-1], 1), dtype=bool)
    return np.logical_or.reduceat(seen, np.arange(0, seen.shape[-1], tile), axis=-1)


def _later(some: Array) -> Array:
    """Whether a tile or one behind it is seen."""
    return np.flip(np.logical_or.accumulate(np.flip(some, -1), axis=-1), -1)


def _unseen(laid: Laid, axis: str, tile: int) -> Array:
    """Whether no query sees a key of the tile that a key lies in."""
    seen = laid.visible.any(-2)
    seen = np.repeat(_some(seen, tile), tile, axis=-1)[..., : seen.shape[-1]]
    return laid.along(axis, ~seen[..., _first(laid, axis) :])


def _partly(laid: Laid, axis: str) -> Array:
    """Whether a key is hidden from a query that sees another one."""
    seen = laid.visible
    return laid.along(axis, (~seen & seen.any(-1, keepdims=True)).any(-2)[..., _first(laid, axis) :])


def _first(laid: Laid, axis: str) -> int:
    """The first key that an axis holds."""
    return laid.call.past if axis == "n" else 0


def _end(laid: Laid, axis: str, test: Callable[[Any, int], Any]) -> Array:
    n = laid.length(axis)
    return laid.along(axis, test(np.arange(n), n))


def _block(laid: Laid, axis: str, test: Callable[[Any, int, int], Any], tile: int) -> Array:
    n = laid.length(axis)
    return laid.along(axis, test(np.arange(n), n, tile))


def _grouped(laid: Laid, test: Callable[[Any, int], Any]) -> Array:
    share = laid.call.heads // laid.call.kv_heads
    if share == 1:
        raise ValueError("no groups")
    return laid.along("H", test(np.arange(laid.length("H")), share))


def _short(laid: Laid) -> Array:
    return laid.along("B", _numbers(laid, "kv_lengths") < laid.call.kv_len)


def _other(laid: Laid, name: str) -> Array:
    numbers = _numbers(laid, name)
    return laid.along("B", numbers != numbers[:1])


def _numbers(laid: Laid, name: str) -> Array:
    given = getattr(laid.call, name)
    if given is None:
        raise ValueError(f"no {name}")
    return np.broadcast_to(np.asarray(given).reshape(-1), (laid.length("B"),))
