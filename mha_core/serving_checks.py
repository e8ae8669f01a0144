"""What the operations of serving refuse; each message names the rule."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mha_core.arrays import dtype_name
from mha_core.checks import check_agree, check_array, check_integers, checked_sizes, shape_of
from mha_core.options import Options, Sizes
from mha_core.result import Array

INTEGERS = ("int32", "int64")


def packed_sizes(query: Array, key: Array, value: Array, options: Options) -> Sizes:
    """The sizes of all rows of a packed call: (H, T_q, d_k), (G, T_k, d_k), (G, T_k, d_v)."""
    _check_ranks({"query": query, "key": key, "value": value}, 3, "heads, rows and width", "PACK-6")
    check_agree("num_kv_heads", "value", value.shape[0], "key", key.shape[0], "SHAPE-5")
    check_agree("rows", "value", value.shape[1], "key", key.shape[1], "SHAPE-5")
    check_agree("d_k", "key", key.shape[2], "query", query.shape[2], "SHAPE-5")
    num_heads, q_len, d_k = query.shape
    return checked_sizes(
        Sizes((), num_heads, key.shape[0], q_len, key.shape[1], d_k, value.shape[2]), options
    )


def check_starts(query: Array, starts: dict[str, Any]) -> int:
    """The number of parts, once both starts are arrays of as many integers, at least one."""
    for name, x in starts.items():
        _check_integers(query, name, x, 1, "PACK-6")
        if x.shape[0] == 0:
            raise ValueError(f"{name} has shape (0,) but needs a first start, which is 0 (PACK-6)")
    (one, x), (other, y) = starts.items()
    check_agree("length", other, y.shape[0], one, x.shape[0], "PACK-6")
    return int(x.shape[0]) - 1


def check_values_of_starts(name: str, starts: Sequence[int], total: int) -> None:
    """Refuses starts that do not begin at 0, fall, or go beyond the rows."""
    if starts[0] != 0:
        raise ValueError(f"{name}[0]={starts[0]} but the first start is 0 (PACK-6)")
    for i, (start, stop) in enumerate(itertools.pairwise(starts)):
        if stop < start:
            raise ValueError(
                f"{name}[{i + 1}]={stop} lies before {name}[{i}]={start}: starts never fall (PACK-6)"
            )
    if starts[-1] > total:
        raise ValueError(f"{name}[{len(starts) - 1}]={starts[-1]} but there are {total} rows (PACK-6)")


def page_sizes(
    query: Array, key_pages: Array, value_pages: Array, page_table: Any, kv_lengths: Any, options: Options
) -> Sizes:
    """The sizes of the dense call: query (B, H, q_len, d_k), pages (N, P, G, d), page_table (B, M)."""
    if len(query.shape) != 4:
        raise ValueError(
            f"query has shape {shape_of(query)} but needs batch, heads, length and width (PAGE-6)"
        )
    check_pages(key_pages, value_pages)
    check_agree("d_k", "key_pages", key_pages.shape[3], "query", query.shape[3], "SHAPE-5")
    _check_integers(query, "page_table", page_table, 2, "PAGE-6")
    _check_integers(query, "kv_lengths", kv_lengths, 1, "PAGE-6")
    batch, num_heads, q_len, d_k = query.shape
    check_agree("batch", "page_table", page_table.shape[0], "query", batch, "PAGE-6")
    check_agree("batch", "kv_lengths", kv_lengths.shape[0], "query", batch, "PAGE-6")
    _, size, num_kv_heads, d_v = value_pages.shape
    sizes = Sizes((batch,), num_heads, num_kv_heads, q_len, page_table.shape[1] * size, d_k, d_v)
    return checked_sizes(sizes, options)


def check_pages(key_pages: Array, value_pages: Array) -> None:
    """Refuses pages that are not (N, P, G, d_k) and (N, P, G, d_v)."""
    _check_ranks(
        {"key_pages": key_pages, "value_pages": value_pages}, 4, "pages, places, heads and width", "PAGE-6"
    )
    for axis, what in enumerate(("pages", "places of a page", "num_kv_heads")):
        check_agree(
            what, "value_pages", value_pages.shape[axis], "key_pages", key_pages.shape[axis], "PAGE-6"
        )
    if key_pages.shape[1] == 0:
        raise ValueError(f"key_pages has shape {shape_of(key_pages)} but a page needs a place (PAGE-6)")


def check_values_of_table(
    table: Sequence[Sequence[int]], lengths: Sequence[int], pages: int, size: int, slots: int
) -> None:
    """Refuses lengths beyond the table, and ids in use of pages that do not exist."""
    for b, (row, length) in enumerate(zip(table, lengths, strict=True)):
        if length > slots:
            raise ValueError(f"kv_lengths[{b}]={length} but page_table has room for {slots} keys (PAGE-6)")
        for m, page in enumerate(row[: max(0, -(-length // size))]):
            if not 0 <= page < pages:
                raise ValueError(
                    f"page_table[{b}, {m}]={page} is read, kv_lengths[{b}] being {length}, "
                    f"but there are {pages} pages (PAGE-6)"
                )


def check_new(key_pages: Array, value_pages: Array, new_key: Any, new_value: Any, slots: Any) -> None:
    """Refuses rows to write that are not (T, G, d_k), (T, G, d_v) and (T,)."""
    _check_ranks({"new_key": new_key, "new_value": new_value}, 3, "rows, heads and width", "PAGE-11")
    for name, x, pages in (("new_key", new_key, key_pages), ("new_value", new_value, value_pages)):
        wanted = tuple(pages.shape[2:])
        if shape_of(x)[1:] != wanted:
            raise ValueError(f"{name} has shape {shape_of(x)} but pages need rows of {wanted} (PAGE-11)")
    _check_integers(key_pages, "slots", slots, 1, "PAGE-11")
    check_agree("rows", "new_value", new_value.shape[0], "new_key", new_key.shape[0], "PAGE-11")
    check_agree("rows", "slots", slots.shape[0], "new_key", new_key.shape[0], "PAGE-11")


def check_values_of_slots(slots: Sequence[int], cells: int) -> None:
    """Refuses slots that do not exist, and a slot that is written twice."""
    for t, slot in enumerate(slots):
        if not -1 <= slot < cells:
            raise ValueError(f"slots[{t}]={slot} but needs -1 or a slot below {cells} (PAGE-11)")
    for slot, times in Counter(slots).items():
        if times > 1 and slot != -1:
            raise ValueError(f"slots has {slot} {times} times but a slot is written once (PAGE-11)")


def check_value_dim(latent: Array, value_dim: Any, scale: Any) -> None:
    """Refuses a width of the values that is not one of the rows', and a scale that is not given."""
    if isinstance(value_dim, bool) or not isinstance(value_dim, int):
        raise ValueError(f"value_dim={value_dim!r} but needs an int (LAT-3)")
    if not 1 <= value_dim <= latent.shape[-1]:
        raise ValueError(f"value_dim={value_dim} but rows of latent have 1 to {latent.shape[-1]} (LAT-3)")
    if scale is None:
        raise ValueError("scale is None but needs a number: rows say nothing of the heads' width (LAT-3)")


def latent_sizes(query: Array, latent: Array, value_dim: int, options: Options) -> Sizes:
    """The sizes of (..., H, q_len, c + r) and (..., kv_len, c + r)."""
    if len(query.shape) < 3:
        raise ValueError(f"query has shape {shape_of(query)} but needs heads, length and width (SHAPE-11)")
    check_agree("batch", "latent", shape_of(latent)[:-2], "query", shape_of(query)[:-3], "SHAPE-5")
    check_agree("width", "latent", latent.shape[-1], "query", query.shape[-1], "LAT-1")
    *batch, num_heads, q_len, width = query.shape
    return checked_sizes(
        Sizes(tuple(batch), num_heads, 1, q_len, latent.shape[-2], width, value_dim), options
    )


def _check_ranks(arrays: dict[str, Array], rank: int, axes: str, rule: str) -> None:
    """Refuses arrays of another rank."""
    for name, x in arrays.items():
        if len(x.shape) != rank:
            raise ValueError(f"{name} has shape {shape_of(x)} but needs {axes} ({rule})")


def _check_integers(like: Array, name: str, x: Any, rank: int, rule: str) -> None:
    """Refuses what is not an array of int32 or int64 of a rank."""
    check_array(name, x, like, rule)
    if dtype_name(x.dtype) not in INTEGERS:
        raise TypeError(f"{name} has dtype {dtype_name(x.dtype)} but needs int32 or int64 (DTYPE-7)")
    if len(x.shape) != rank:
        raise ValueError(
            f"{name} has shape {shape_of(x)} but needs {rank} {'axis' if rank == 1 else 'axes'} ({rule})"
        )


def check_offset(query: Array, options: Options, count: int, rule: str) -> None:
    """Refuses an offset that is neither an int nor one integer for all or for each part or entry."""
    offset = options.q_offset
    if offset is None or (isinstance(offset, int) and not isinstance(offset, bool)):
        return
    check_integers(query, "q_offset", offset, ((), (count,)), rule)


def check_offset_given(options: Options, what: str, rule: str) -> None:
    """Refuses a causal mask or a window without an offset."""
    if options.q_offset is None and (options.is_causal or options.window is not None):
        raise ValueError(f"q_offset is None but is_causal or window with {what} needs it ({rule})")
