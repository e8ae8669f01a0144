"""Packed, paged, latent and merged attention by reduction to attention, as small steps of which a defect replaces one.

`p` is the call that was given (`Served`), `s` are the steps of the reference.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.serving.call import Served
from conformance.names import APPEND, LATENT, MERGE, PACKED, PAGED, SDPA
from conformance.vectors.case import Array

Outputs = dict[str, Array]


def serve(s: Any, p: Served) -> Outputs:
    """One call, from arguments to outputs."""
    for check in s.serving_checks:
        check(p)
    steps: dict[str, Callable[[Any, Served], Outputs]] = {
        PACKED: s.packed,
        PAGED: s.paged,
        APPEND: s.written,
        LATENT: s.latent,
        MERGE: s.merged,
    }
    return steps[p.operation](s, p)


def attention(s: Any, query: Array, key: Array, value: Array, **options: Any) -> Outputs:
    """Attention by the other steps."""
    outputs: Outputs = s.compute(s, Call(SDPA, query, key, value, **options))
    return outputs


def packed(s: Any, p: Served) -> Outputs:
    """Each part as a call of its own; rows of no part stay zero (PACK-1, PACK-5)."""
    heads, length, _ = p.query.shape
    outputs = {"output": np.zeros((heads, length, p.value.shape[-1]), p.query.dtype)}
    if p.return_lse:
        outputs["lse"] = np.full((heads, length), -np.inf, p.wide)
    for i in range(p.parts):
        rows, part = s.part(p, i)
        for name, found in attention(s, **part).items():
            outputs[name][:, rows] = found
    return outputs


def part(p: Served, i: int) -> tuple[slice, dict[str, Any]]:
    """The rows of a part, and its call (PACK-2, PACK-3)."""
    rows, keys = slice(*p.q_starts[i : i + 2]), slice(*p.kv_starts[i : i + 2])
    offset = p.q_offset[i] if np.ndim(p.q_offset) else p.q_offset
    arrays = {"query": p.query[:, rows], "key": p.key[:, keys], "value": p.value[:, keys]}
    return rows, {**arrays, **p.options, "q_offset": offset}


def written(s: Any, p: Served) -> Outputs:
    """Both arrays of pages after what is new was written; a slot of -1 writes nothing (PAGE-7, PAGE-8, PAGE-9)."""
    pages = {}
    kept = p.slots != -1
    for name, new in (("key_pages", p.new_key), ("value_pages", p.new_value)):
        pages[name] = getattr(p, name).copy()
        pages[name].reshape(-1, *new.shape[1:])[p.slots[kept]] = new[kept]
    return pages


def table(p: Served) -> Array:
    """The page of each place of each entry; of places behind the length any page (PAGE-2)."""
    used = np.arange(p.page_table.shape[1]) < -(-p.kv_lengths[:, None] // p.page)
    return np.where(used, p.page_table, 0)


def gathered(p: Served, pages: Array, table: Array) -> Array:
    """Keys or values by table, [B, G, M P, d] (PAGE-1); zeros behind the length."""
    if not pages.shape[0]:
        pages = np.zeros((1, *pages.shape[1:]), pages.dtype)
    found = pages[table]  # [B, M, P, G, d]
    joined = found.reshape(table.shape[0], table.shape[1] * p.page, *pages.shape[2:])  # [B, M P, G, d]
    read = np.arange(joined.shape[1]) < p.kv_lengths[:, None]
    return np.moveaxis(np.where(read[..., None, None], joined, joined.dtype.type(0)), 2, 1)


def paged(s: Any, p: Served) -> Outputs:
    """Writes first, then attention to what the tables name (PAGE-10)."""
    after = s.written(s, p) if p.slots is not None else {}
    pages = {"key_pages": p.key_pages, "value_pages": p.value_pages, **s.seen(p, after)}
    read = s.table(p)
    key, value = (s.gathered(p, pages[name], read) for name in ("key_pages", "value_pages"))
    outputs = attention(s, p.query, key, value, kv_lengths=s.lengths(p), **p.options)
    return {**outputs, **after}


def latent(s: Any, p: Served) -> Outputs:
    """Keys are the rows, values their first channels, one group for all heads (LAT-1, LAT-2)."""
    key, value = s.rows_of(p)
    return attention(s, p.query, key, value, **p.options)


def rows_of(p: Served) -> tuple[Array, Array]:
    """Keys and values of latent rows."""
    key = p.latent[..., None, :, :]
    return key, key[..., : p.value_dim]


def merged(s: Any, p: Served) -> Outputs:
    """Partial results by the share of each in the sum of all (MERGE-1)."""
    lses = np.stack([x.astype(p.wide) for x in p.lses])  # [P, ..., H, q_len]
    peak = s.merge_peak(p, lses)  # [..., H, q_len]
    terms = s.merge_terms(p, lses, peak)  # [P, ..., H, q_len]
    total = s.merge_total(p, terms, peak)  # [..., H, q_len]
    shares = np.where(terms == 0, p.wide(0), terms / np.where(total == 0, p.wide(1), total))
    rows = [share[..., None] * s.partial(p, i) for i, share in enumerate(shares)]
    hidden = [np.isneginf(x)[..., None] for x in lses]
    output = sum(np.where(gone, p.wide(0), row) for gone, row in zip(hidden, rows, strict=True))
    return s.merge_finish(p, np.asarray(output), s.merge_log(p, total, peak, lses))


def merge_peak(p: Served, lses: Array) -> Array:
    """The largest lse or sink; 0 where there is none above -inf."""
    peak: Any = lses.max(axis=0)
    if p.sinks is not None:
        peak = np.maximum(peak, p.sinks.astype(p.wide)[:, None])
    return np.where(np.isneginf(peak), p.wide(0), peak).astype(p.wide)


def merge_total(p: Served, terms: Array, peak: Array) -> Array:
    """The sum over the parts, and the sink once (MERGE-3)."""
    total: Array = terms.sum(axis=0)
    return total if p.sinks is None else total + np.exp(p.sinks.astype(p.wide)[:, None] - peak)


def merge_log(p: Served, total: Array, peak: Array, lses: Array) -> Array:
    """The lse of the whole; where every part is empty -inf, or the sink where there is one (MERGE-4)."""
    sink = p.wide(-np.inf) if p.sinks is None else p.sinks.astype(p.wide)[:, None]
    return np.where(np.isneginf(lses).all(axis=0), sink, np.log(total) + peak)


SERVING_STEPS: dict[str, Any] = {
    "packed": packed,
    "part": part,
    "written": written,
    "seen": lambda p, after: after,
    "table": table,
    "gathered": gathered,
    "lengths": lambda p: p.kv_lengths,
    "paged": paged,
    "latent": latent,
    "rows_of": rows_of,
    "merged": merged,
    "merge_peak": merge_peak,
    "merge_terms": lambda p, lses, peak: np.exp(lses - peak),
    "merge_total": merge_total,
    "partial": lambda p, i: p.outputs[i].astype(p.wide),
    "merge_log": merge_log,
    "merge_finish": lambda p, output, lse: {"output": output.astype(p.first.dtype), "lse": lse},
}
"""Step -> what the reference does."""
