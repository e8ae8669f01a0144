"""Drafts of the operations that are defined by reduction; what is not given is drawn from a stream named by the ID."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.names import APPEND, LATENT, MERGE, PACKED, PAGED
from conformance.vectors.case import Array
from conformance.vectors.generate.draft import Draft, drafted
from conformance.vectors.generate.random_inputs import Draws


def pack(
    id: str,  # noqa: A002 - the word that the index and the reports use
    note: str,
    *covers: str,
    q_lens: Sequence[int] = (2, 3),
    kv_lens: Sequence[int] = (3, 4),
    heads: int = 3,
    kv_heads: int | None = None,
    d_k: int = 4,
    d_v: int | None = None,
    spare: tuple[int, int] = (0, 0),  # rows of query, and of key and value, that belong to no part
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """A packed call of parts of these lengths, with NaN in the rows of no part."""
    draws = Draws(like or id)
    groups, width = kv_heads or heads, d_v or d_k
    t_q, t_k = sum(q_lens), sum(kv_lens)
    inputs = {
        "query": filled(draws.gauss(heads, t_q, d_k, bits=bits), 1, spare[0]),
        "key": filled(draws.gauss(groups, t_k, d_k, bits=bits), 1, spare[1]),
        "value": filled(draws.gauss(groups, t_k, width, bits=bits), 1, spare[1]),
        "q_starts": starts(q_lens),
        "kv_starts": starts(kv_lens),
    }
    return drafted(id, note, covers, PACKED, inputs, given)


def starts(lengths: Sequence[int]) -> Array:
    """The begin of each part, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]).astype(np.int64)


def filled(array: Array, axis: int, count: int) -> Array:
    """The array with so many rows of NaN behind it."""
    shape = [*array.shape]
    shape[axis] = count
    return np.concatenate([array, np.full(shape, np.nan)], axis)


def page(
    id: str,  # noqa: A002 - as above
    note: str,
    *covers: str,
    lengths: Sequence[int] = (5, 3),
    size: int = 2,  # P
    table: Sequence[Sequence[int]] | None = None,  # the pages of each entry; drawn without one
    columns: int | None = None,  # M; one more than the longest entry needs
    pages: int | None = None,  # N; two more than are used
    behind: Sequence[int] = (-1,),  # what stands in the table behind the length, in turn
    heads: int = 3,
    kv_heads: int | None = None,
    q_len: int = 2,
    d_k: int = 4,
    d_v: int | None = None,
    unread: float = float("nan"),  # in every cell that no entry may read
    write: Sequence[int] | None = None,  # slots of new keys and values
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """A paged call; pages are drawn in no order, and every cell that no entry may read holds NaN."""
    draws = Draws(like or id)
    groups, width = kv_heads or heads, d_v or d_k
    needed = [-(-max(length, 0) // size) for length in lengths]
    columns = max(needed, default=0) + 1 if columns is None else columns
    pages = sum(needed) + 2 if pages is None else pages
    if table is None:
        table = _drawn_table(draws, needed, pages)
    full = np.resize(np.array(behind, np.int64), (len(lengths), columns))
    read = np.zeros((pages, size), bool)
    for b, own in enumerate(table):
        full[b, : len(own)] = own
        for t in range(lengths[b]):
            read[own[t // size], t % size] = True
    for slot in write or ():
        if 0 <= slot < pages * size:
            read[slot // size, slot % size] = False
    inputs = {
        "query": draws.gauss(len(lengths), heads, q_len, d_k, bits=bits),
        "key_pages": draws.gauss(pages, size, groups, d_k, bits=bits),
        "value_pages": draws.gauss(pages, size, groups, width, bits=bits),
        "page_table": full,
        "kv_lengths": np.array(lengths, np.int64),
    }
    for name in ("key_pages", "value_pages"):
        inputs[name][~read] = unread
    if write is not None:
        inputs |= new(draws, write, groups, d_k, width)
    return drafted(id, note, covers, PAGED, inputs, given)


def _drawn_table(draws: Draws, needed: Sequence[int], pages: int) -> list[list[int]]:
    """Pages of their own for each entry, in no order; neither the first nor the last page where there are others."""
    order = [int(n) for n in np.argsort(draws.integers(pages, low=0, high=2**30), kind="stable")]
    ends = [order.index(0), order.index(pages - 1)]
    order = [n for n in order if n not in (0, pages - 1)] + [order[i] for i in ends]
    begins = np.cumsum([0, *needed])
    return [order[a:b] for a, b in pairwise(begins)]


def new(draws: Draws, slots: Sequence[int], groups: int, d_k: int, d_v: int) -> dict[str, Array]:
    """New keys and values, and where they go; those that go nowhere are NaN."""
    found = {
        "new_key": draws.gauss(len(slots), groups, d_k),
        "new_value": draws.gauss(len(slots), groups, d_v),
        "slots": np.array(slots, np.int64),
    }
    for name in ("new_key", "new_value"):
        found[name][found["slots"] == -1] = np.nan
    return found


def append(
    id: str,  # noqa: A002 - as above
    note: str,
    *covers: str,
    slots: Sequence[int] = (3, 0, 5),
    pages: int = 4,
    size: int = 2,
    kv_heads: int = 2,
    d_k: int = 4,
    d_v: int = 3,
    integers: Any = np.int64,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """Writes to pages; every third cell that is there already holds NaN."""
    draws = Draws(like or id)
    inputs = {
        "key_pages": draws.gauss(pages, size, kv_heads, d_k),
        "value_pages": draws.gauss(pages, size, kv_heads, d_v),
        **new(draws, slots, kv_heads, d_k, d_v),
    }
    for name in ("key_pages", "value_pages"):
        cells = inputs[name].reshape(pages * size, kv_heads, -1)
        cells[1::3] = np.nan
        cells[2::3, :, 0] = -0.0
    inputs["slots"] = inputs["slots"].astype(integers)
    return drafted(id, note, covers, APPEND, inputs, given)


def latent(
    id: str,  # noqa: A002 - as above
    note: str,
    *covers: str,
    batch: tuple[int, ...] = (2,),
    heads: int = 3,
    q_len: int = 2,
    kv_len: int = 5,
    value_dim: int = 4,
    rotary: int = 2,
    scale: float = 0.375,
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """Attention to rows of `value_dim` and more channels."""
    draws = Draws(like or id)
    inputs = {
        "query": draws.gauss(*batch, heads, q_len, value_dim + rotary, bits=bits),
        "latent": draws.gauss(*batch, kv_len, value_dim + rotary, bits=bits),
    }
    return drafted(id, note, covers, LATENT, inputs, {"value_dim": value_dim, "scale": scale, **given})


def merge(
    id: str,  # noqa: A002 - as above
    note: str,
    *covers: str,
    parts: int = 2,
    batch: tuple[int, ...] = (2,),
    heads: int = 3,
    q_len: int = 2,
    d_v: int = 4,
    sigma: float = 1.5,
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """Partial results and their lses."""
    draws = Draws(like or id)
    inputs = {
        "outputs": draws.gauss(parts, *batch, heads, q_len, d_v, bits=bits),
        "lses": draws.gauss(parts, *batch, heads, q_len, sigma=sigma, bits=bits),
    }
    return drafted(id, note, covers, MERGE, inputs, given)
