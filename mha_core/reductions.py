"""What the operations of serving mean: operands laid out for them as those of an attention that is dense.

A packed call is one attention for each part, pages are keys in another order, latent rows are keys and values at once.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from mha_core.arrays import arange, beside, cast, writes_in_place
from mha_core.options import Options
from mha_core.result import Array


def alike(keys: Iterable[Hashable], limit: int) -> list[list[int]]:
    """The places of equal keys, in order; no more than `limit` together."""
    groups: dict[Hashable, list[list[int]]] = {}
    for place, key in enumerate(keys):
        those = groups.setdefault(key, [[]])
        if len(those[-1]) == limit:
            those.append([])
        those[-1].append(place)
    return [group for those in groups.values() for group in those]


class Parts(NamedTuple):
    """Parts of the rows of an array, each behind the one before (PACK-1)."""

    starts: list[int]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    def length(self, i: int) -> int:
        """The rows of a part."""
        return self.starts[i + 1] - self.starts[i]

    def stacked(self, xp: Any, x: Array, group: list[int]) -> Array:
        """Parts of equal length of (heads, T, d): (parts, heads, length, d)."""
        heads, _, d = x.shape
        first, last, length = group[0], group[-1], self.length(group[0])
        if last - first == len(group) - 1:  # side by side, and need no copy
            rows = x[:, self.starts[first] : self.starts[last + 1], :]
            return xp.permute_dims(xp.reshape(rows, (heads, len(group), length, d)), (1, 0, 2, 3))
        return xp.stack([x[:, self.starts[i] : self.starts[i + 1], :] for i in group], axis=0)


def rows_of_parts(
    xp: Any, parts: Parts, groups: list[list[int]], results: list[Array], total: int, fill: float
) -> Array:
    """Results of groups of parts, (parts, heads, length, ...), as rows: (heads, total, ...), the rest filled."""
    first = results[0]
    heads, d = first.shape[1], tuple(first.shape[3:])
    if len(groups) == 1:
        length = first.shape[0] * first.shape[2]
        swapped = xp.permute_dims(first, (1, 0, *range(2, len(first.shape))))
        pieces = [xp.reshape(swapped, (heads, length, *d))]
    else:
        places = {i: (n, k) for n, group in enumerate(groups) for k, i in enumerate(group)}
        pieces = [results[n][k, ...] for n, k in (places[i] for i in range(len(parts)))]
    missing = total - parts.starts[-1]
    if missing:
        pieces.append(xp.full((heads, missing, *d), fill, dtype=first.dtype, **beside(first)))
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=1)


def mask_of_parts(
    xp: Any, q_starts: Array, kv_starts: Array, options: Options, q_len: int, kv_len: int
) -> Array:
    """The same where the starts cannot be read: which row of all sees which key of all, (q_len, kv_len)."""
    row, q_part, q_place = _places(xp, q_starts, q_len)
    _, kv_part, kv_place = _places(xp, kv_starts, kv_len)
    count = q_starts.shape[0] - 1
    visible = xp.logical_and(q_part[:, None] == kv_part[None, :], (q_part < count)[:, None])
    left, right = options.window or (None, None)
    right = 0 if options.is_causal else right
    if left is None and right is None:
        return visible
    limit = xp.iinfo(row.dtype).max // 4
    offset: Any = 0 if options.q_offset is None else options.q_offset
    if isinstance(offset, int):
        place = q_place + max(-limit, min(limit, offset))
    else:
        offset = xp.clip(cast(xp, offset, row.dtype), -limit, limit)
        place = q_place + (offset if offset.shape == () else _of_part(xp, offset, q_part))
    j, p = kv_place[None, :], place[:, None]
    if left is not None:
        visible = xp.logical_and(visible, j >= p - min(limit, left))
    return visible if right is None else xp.logical_and(visible, j <= p + min(limit, right))


def _places(xp: Any, starts: Array, length: int) -> tuple[Array, Array, Array]:
    """Each row, the number of its part, as many as there are for none, and its place in that, (length,)."""
    row = arange(xp, 0, length, starts)
    starts = cast(xp, starts, row.dtype)
    part = xp.sum(cast(xp, row[:, None] >= starts[None, 1:], row.dtype), axis=-1)
    return row, part, row - _of_part(xp, starts, part)


def _of_part(xp: Any, numbers: Array, part: Array) -> Array:
    """The number of each row's part; any where there is none."""
    count = numbers.shape[0]
    if count == 0:
        return xp.zeros_like(part)
    return xp.take(numbers, xp.clip(part, 0, count - 1), axis=0)


def heads_of_pages(xp: Any, pages: Array, table: Array) -> Array:
    """The keys of (N, P, G, d) in the order of a table (entries, M): (entries, G, M * P, d) (PAGE-1)."""
    _, size, num_kv_heads, d = pages.shape
    entries, count = table.shape
    if pages.shape[0] == 0 or count == 0:
        return xp.zeros((entries, num_kv_heads, count * size, d), dtype=pages.dtype, **beside(pages))
    taken = xp.take(pages, xp.reshape(table, (-1,)), axis=0)
    return xp.permute_dims(xp.reshape(taken, (entries, count * size, num_kv_heads, d)), (0, 2, 1, 3))


def table_in_use(xp: Any, table: Array, lengths: Array, size: int) -> Array:
    """A table (B, M) with page 0 in place of what stands behind the lengths (B,), for values that cannot be read."""
    place = arange(xp, 0, table.shape[1], table)[None, :]
    return xp.where(place * size < cast(xp, lengths, place.dtype)[:, None], table, xp.zeros_like(table))


def written(xp: Any, pages: Array, new: Array, slots: Sequence[int] | Array) -> Array:
    """Pages (N, P, G, d) with rows (T, G, d) in some slots, not of -1, all else bit for bit (PAGE-7 to PAGE-9)."""
    shape, cells = pages.shape, math.prod(pages.shape[:2])
    flat = xp.reshape(pages, (cells, *shape[2:]))
    if not isinstance(slots, Sequence):
        return xp.reshape(_written_unread(xp, flat, new, slots), shape)
    flat = xp.concat([flat, flat[:0, ...]], axis=0)  # a copy, of which a derivative is known
    rows = [t for t, slot in enumerate(slots) if slot >= 0]
    if not rows:
        pass
    elif hasattr(flat, "at"):  # a value, whose methods return others
        flat = flat.at[xp.asarray([slots[t] for t in rows]), ...].set(new[xp.asarray(rows), ...])
    elif writes_in_place(xp, flat) or hasattr(flat, "index_put_"):
        flat[[slots[t] for t in rows]] = new[rows]
    else:
        source = xp.arange(cells, **beside(flat))
        for t in rows:
            source[slots[t]] = cells + t
        flat = xp.take(xp.concat([flat, new], axis=0), source, axis=0)
    return xp.reshape(flat, shape)


def _written_unread(xp: Any, flat: Array, new: Array, slots: Array) -> Array:
    """Cells (cells, G, d) with rows in slots whose numbers cannot be read."""
    cells = flat.shape[0]
    if new.shape[0] == 0:
        return flat
    if hasattr(flat, "at"):
        beyond = xp.where(slots < 0, xp.asarray(cells, dtype=slots.dtype), slots)
        return flat.at[beyond, ...].set(new, mode="drop")
    here = arange(xp, 0, cells, flat)[:, None] == slots[None, :]  # (cells, T)
    source = xp.where(
        xp.any(here, axis=-1),
        cells + xp.argmax(cast(xp, here, slots.dtype), axis=-1),
        arange(xp, 0, cells, flat),
    )
    return xp.take(xp.concat([flat, new], axis=0), source, axis=0)


def latent_heads(latent: Array, value_dim: int) -> tuple[Array, Array]:
    """Rows (..., kv_len, c + r) as key (..., 1, kv_len, c + r) and value (..., 1, kv_len, c) of one group (LAT-1)."""
    key = latent[..., None, :, :]
    return key, key[..., :value_dim]
