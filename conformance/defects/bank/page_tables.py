"""Keys in pages that a table names: which page, which slot in it, and how many of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.defect import Change, Defect, needing, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.serving.call import Served
from conformance.defects.serving.steps import attention
from conformance.vectors.case import Array

Pages = dict[str, Array]


def _table(change: Callable[[Served, Array], Array]) -> Change:
    """Another table; numbers that are no page wrap around, as they would fall somewhere in memory."""
    return {"table": lambda p: change(p, R.table(p)) % max(p.key_pages.shape[0], 1)}


def _lengths(change: Callable[[Served, Array], Array]) -> Change:
    """Other lengths, with what then lies within them."""

    def moved(p: Served) -> Served:
        capacity = p.page_table.shape[1] * p.page
        number = np.clip(change(p, p.kv_lengths), 0, capacity).astype(p.kv_lengths.dtype)
        table = p.page_table % max(p.key_pages.shape[0], 1)
        return replace(p, kv_lengths=number, page_table=table)

    return {
        "table": lambda p: R.table(moved(p)),
        "gathered": lambda p, pages, table: R.gathered(moved(p), pages, table),
        "lengths": lambda p: moved(p).kv_lengths,
    }


def _up(p: Served, lengths: Array, size: int) -> Array:
    return -(-lengths // size) * size


def _slots(change: Callable[[Served, Array], Array]) -> Change:
    """Keys and values of an entry, [B, G, M P, d], in another order."""
    return {"gathered": lambda p, pages, table: change(p, R.gathered(p, pages, table))}


def _of_size(size: int) -> Change:
    """Pages are read as if each had so many slots: slot t of an entry lies in page table[t div size]."""

    def gathered(p: Served, pages: Array, table: Array) -> Array:
        cells = pages.reshape(-1, *pages.shape[2:])
        if not table.size or not len(cells):
            return R.gathered(p, pages, table)
        slot = np.arange(table.shape[1] * p.page)
        page = np.take(table, np.minimum(slot // size, table.shape[1] - 1), axis=1)
        return np.moveaxis(cells[(page * p.page + slot % size) % len(cells)], 2, 1)

    return {"gathered": gathered}


def _one_owner(p: Served, pages: Array, table: Array) -> Array:
    """Each page belongs to the last place that names it; the others read zeros."""
    found: Array = R.gathered(p, pages, table)
    owner = {}
    used = [(b, m) for b, n in enumerate(p.kv_lengths.tolist()) for m in range(-(-max(n, 0) // p.page))]
    for b, m in used:
        owner[int(table[b, m])] = (b, m)
    for b, m in used:
        if owner[int(table[b, m])] != (b, m):
            found[b, :, m * p.page : (m + 1) * p.page] = 0
    return found


def _consecutive(p: Served, table: Array) -> Array:
    """Pages behind the first as if they followed it in memory."""
    return table[:, :1] + np.arange(table.shape[1])


def _nan_times_zero(p: Served, pages: Array, table: Array) -> Array:
    """Slots behind the length are read, and weigh nothing only later."""
    found = pages[table] if pages.shape[0] else np.zeros((*table.shape, *pages.shape[1:]), pages.dtype)
    return np.moveaxis(found.reshape(len(table), table.shape[1] * p.page, *pages.shape[2:]), 2, 1)


def _all_read(s: Any, p: Served) -> Pages:
    """Hidden slots are multiplied by a weight of zero."""
    key, value = (_nan_times_zero(p, pages, s.table(p)) for pages in (p.key_pages, p.value_pages))
    outputs = attention(
        s,
        p.query,
        np.where(np.isnan(key), key.dtype.type(0), key),
        value,
        kv_lengths=p.kv_lengths,
        **p.options,
    )
    used = -(-p.kv_lengths // p.page) * p.page
    behind = (np.arange(value.shape[2]) >= p.kv_lengths[:, None]) & (
        np.arange(value.shape[2]) < used[:, None]
    )
    spoilt = (~np.isfinite(value) & behind[:, None, :, None]).any(axis=2)  # [B, G, d_v]
    spread = np.repeat(spoilt, p.query.shape[1] // value.shape[1], axis=1)[:, :, None]
    after = s.written(s, p) if p.slots is not None else {}
    return {
        **outputs,
        "output": np.where(spread, np.asarray(np.nan, p.query.dtype), outputs["output"]),
        **after,
    }


def _empty(output: float, lse: float) -> Change:
    """What entries without keys get."""

    def paged(s: Any, p: Served) -> Pages:
        found: Pages = R.paged(s, p)
        for name, number in (("output", output), ("lse", lse)):
            if name in found:
                found[name][p.kv_lengths <= 0] = number
        return found

    return {"paged": paged}


def _paged(change: Callable[[Served], Served]) -> Change:
    """Another call, where there are pages."""
    return {"paged": lambda s, p: R.paged(s, change(p))}


def _one_offset(p: Served) -> Served:
    return replace(p, q_offset=int(p.q_offset[0])) if np.ndim(p.q_offset) and len(p.q_offset) else p


def _by_capacity(p: Served) -> Served:
    """Queries at the end of what the table holds, not of what is there."""
    if not p.is_causal and p.window is None:
        return p
    return replace(p, q_offset=p.page_table.shape[1] * p.page - p.query.shape[2])


def _at_end(p: Served) -> Served:
    if not p.is_causal and p.window is None:
        return p
    return replace(p, q_offset=p.kv_lengths - p.query.shape[2])


def _without_last(p: Served, x: Array) -> Array:
    """Keys are read one slot late."""
    return np.roll(x, -1, axis=2)


def _entry_of(p: Served, table: Array) -> Array:
    """Every entry reads the table of the first."""
    return np.broadcast_to(table[:1], table.shape)


def _sinks_of_pages(s: Any, p: Served) -> Pages:
    """The sink once a page that is read."""
    if p.sinks is None or not len(p.kv_lengths):
        return R.paged(s, p)
    found: list[Pages] = []
    for b in range(len(p.kv_lengths)):
        one = {n: getattr(p, n)[b : b + 1] for n in ("query", "page_table", "kv_lengths")}
        for name in ("mask", "attn_bias", "q_offset"):
            x = getattr(p, name)
            one[name] = x[b : b + 1] if np.ndim(x) in (1, 4) else x
        pages = max(-(-int(p.kv_lengths[b]) // p.page), 1)
        sinks = (p.sinks.astype(np.float64) + np.log(pages)).astype(p.sinks.dtype)
        found.append(R.paged(s, replace(p, sinks=sinks, **one)))
    whole = {
        name: np.concatenate([x[name] for x in found]) for name in found[0] if not name.endswith("_pages")
    }
    return {**whole, **{name: x for name, x in found[0].items() if name.endswith("_pages")}}


def sizes(make: Callable[[int], Change]) -> dict[str, Any]:
    """A defect that takes pages for 16 slots, and its variants."""
    return varied({f"pages of {size}": make(size) for size in (16, 1, 32, 64, 128, 256)}, "pages of 16")


DEFECTS = needing("paged", (
    Defect("paged-table-one-page-late", "Every page is read one place late in the table, the first one last.",
           ("PAGE-1",), _table(lambda p, table: np.roll(table, -1, axis=1))),
    Defect("paged-page-number-off-by-one", "Pages are counted from one: the page behind each is read.",
           ("PAGE-1",), _table(lambda p, table: table + 1)),
    Defect("paged-pages-taken-as-consecutive",
           "The first page of an entry is looked up, and those behind it are taken to follow it in memory.",
           ("PAGE-1",), _table(_consecutive), origin="hw-native-sys/pypto#470"),
    Defect("paged-table-of-the-first-entry", "Every entry reads the table of the first.",
           ("PAGE-1", "IND-3"), _table(_entry_of)),
    Defect("paged-one-owner-of-a-page",
           "A page belongs to the last place in the tables that names it, and reads as zeros in every other.",
           ("PAGE-3",), {"gathered": _one_owner}),
    Defect("paged-no-table", "Pages are read in the order of memory, and the table is not.",
           ("PAGE-1",), _table(lambda p, table: np.arange(table.size).reshape(table.shape))),
    Defect("paged-another-page-size", "The size of a page is taken to be 16, whatever the pages hold.",
           ("PAGE-1",), **sizes(_of_size), origin="ROCm/aiter#2996"),
    Defect("paged-page-size-of-one", "The table is read as if each page held one slot.",
           ("PAGE-1",), _of_size(1), origin="ROCm/aiter#2996"),
    Defect("paged-last-page-read-to-its-end",
           "The last page is read to its end, slots behind the length too.",
           ("PAGE-2", "MASK-12"), _lengths(lambda p, n: _up(p, n, p.page))),
    Defect("paged-slots-behind-weigh-zero",
           "Slots of the last page behind the length are multiplied by zero, so that a NaN in them is in every row.",
           ("PAGE-2",), {"paged": _all_read}, origin="vllm-project/vllm#936"),
    Defect("paged-every-page-of-the-table-read",
           "Every page that the table names is read, whatever the length.",
           ("PAGE-2",), _lengths(lambda p, n: np.full_like(n, p.page_table.shape[1] * p.page))),
    Defect("paged-length-in-pages", "Lengths count whole pages: the last one is left out unless it is full.",
           ("PAGE-2",), _lengths(lambda p, n: n // p.page * p.page)),
    Defect("paged-one-key-less", "The last key of each entry is left out.",
           ("PAGE-2", "MASK-12"), _lengths(lambda p, n: n - 1)),
    Defect("paged-one-key-more", "The slot behind the last key of each entry is read as well.",
           ("PAGE-2", "MASK-12"), _lengths(lambda p, n: n + 1)),
    Defect("paged-longest-length-for-all", "Every entry is read as far as the longest one.",
           ("PAGE-2", "IND-3"), _lengths(lambda p, n: np.full_like(n, n.max(initial=0)))),
    Defect("paged-empty-entry-reads-one-page", "An entry of length zero is read as if it had one key.",
           ("PAGE-4",), _lengths(lambda p, n: np.maximum(n, 1))),
    Defect("paged-empty-entry-is-nan", "Entries of length zero get NaN.",
           ("PAGE-4", "MASK-3"), _empty(np.nan, -np.inf), origin="HabanaAI/vllm-fork#318"),
    Defect("paged-lse-of-an-empty-entry-is-plus-infinity", "The lse of entries of length zero is +inf.",
           ("PAGE-4", "ATT-14"), _empty(0.0, np.inf),
           origin="deepseek-ai/FlashMLA#77", features=("return_lse",)),
    Defect("paged-keys-one-slot-late", "Keys and values are read one slot late, the first one last.",
           ("PAGE-1",), _slots(_without_last)),
    Defect("paged-causality-from-the-end-of-the-table",
           "Queries are put at the end of what the table can hold, so that causality hides nothing that is there.",
           ("PAGE-5",), _paged(_by_capacity)),
    Defect("paged-last-query-at-last-key",
           "The last query of each entry is put at its last key, whatever the offset.",
           ("PAGE-5", "MASK-8"), _paged(_at_end)),
    Defect("paged-first-offset-for-all", "The offset of the first entry serves all.",
           ("PAGE-5", "MASK-8"), _paged(_one_offset), features=("q_offset",)),
    Defect("paged-sink-once-a-page", "The sink counts once for each page that is read.",
           ("PAGE-1", "ATT-12"), {"paged": _sinks_of_pages}, features=("sinks",)),
))  # fmt: skip
