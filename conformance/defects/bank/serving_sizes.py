"""Serving kernels that are wrong from a size on: long decoding, many entries, parts, heads and channels, wide pages."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.serving.call import Served
from conformance.vectors.case import Array

PAGED, APPEND, PACKED, LATENT, MERGE = ("paged",), ("append",), ("packed",), ("latent",), ("merge",)
LONG = 256
"""Keys beyond which a kernel attends them in parts."""


def _decoding(change: Callable[[Served], dict[str, Any]], beyond: int = 0) -> Change:
    """A paged call of one query, with operands or options changed where its entries have so many keys."""

    def paged(s: Any, p: Served) -> dict[str, Array]:
        hit = p.query.shape[-2] == 1 and p.kv_lengths.max(initial=0) > beyond
        found: dict[str, Array] = R.paged(s, replace(p, **change(p)) if hit else p)
        return found

    return {"paged": paged}


def _after(step: str, change: Callable[[Served, dict[str, Array]], dict[str, Array]]) -> Change:
    """What an operation returns, changed."""
    return {step: lambda s, p: change(p, dict(getattr(R, step)(s, p)))}


def _written(change: Callable[[Served], dict[str, Any]]) -> Change:
    """Slots or new rows, changed before they are written."""
    return {"written": lambda s, p: R.written(s, replace(p, **change(p)))}


def _entries(p: Served) -> dict[str, Any]:
    index = np.arange(len(p.kv_lengths)) % 64
    return {"page_table": p.page_table[index], "kv_lengths": p.kv_lengths[index]}


def _last_again(pages: Array) -> Array:
    found = pages.copy()
    found[:, -1] = found[:, -2]
    return found


def _prefix(p: Served) -> dict[str, Any]:
    shared = p.sinks is not None and len(p.kv_lengths) > 1 and p.kv_lengths.min() > p.page
    if not shared or (p.page_table[:, 0] != p.page_table[0, 0]).any():
        return {}
    return {"sinks": (p.sinks + np.log(2.0)).astype(p.sinks.dtype)}


def _heads(p: Served, found: dict[str, Array], groups: int, most: int) -> dict[str, Array]:
    """Heads of a group from `most` on get what those before have."""
    heads = found["output"].shape[-3]
    size = heads // max(groups, 1)
    index = np.arange(heads)
    index = index // size * size + index % size % most
    return {**found, "output": found["output"][..., index, :, :]}


def _slots(p: Served) -> dict[str, Any]:
    small = 16
    moved = p.slots // small * p.page + p.slots % small
    return {"slots": np.where(p.slots < 0, p.slots, moved % p.cells)} if p.page > small else {}


def _rows(p: Served) -> dict[str, Any]:
    return {"slots": np.where(np.arange(len(p.slots)) < 128, p.slots, -1)}


def _few_heads(p: Served) -> dict[str, Any]:
    found = {"new_key": p.new_key.copy(), "new_value": p.new_value.copy()}
    for x in found.values():
        x[:, 4:] = 0
    return found


def _part(change: Callable[[Served, int, dict[str, Any]], dict[str, Any]]) -> Change:
    def part(p: Served, i: int) -> tuple[slice, dict[str, Any]]:
        rows, found = R.part(p, i)
        return rows, {**found, **change(p, i, found)}

    return {"part": part}


def _cut(found: dict[str, Any], most: int) -> dict[str, Any]:
    """Keys behind the first so many are lost; places stay."""
    if found["key"].shape[-2] <= most:
        return {}
    return {
        "key": found["key"][:, :most],
        "value": found["value"][:, :most],
        "q_offset": found["q_offset"] or 0,
    }


def _first_part(places: tuple[Any, ...]) -> Change:
    """Some of the result is that of the first partial result."""

    def change(p: Served, found: dict[str, Array]) -> dict[str, Array]:
        output = found["output"].copy()
        output[places] = p.outputs[0][places]
        return {**found, "output": output}

    return _after("merged", change)


DEFECTS = (
    Defect("paged-decode-reads-1024-keys", "With one query your keys from 1,024 on are never read.",
           ("PAGE-1",), _decoding(lambda p: {"kv_lengths": np.minimum(p.kv_lengths, 1024)}), features=PAGED),
    Defect("paged-decode-long-not-causal", "With one query over more than 256 keys causality is lost.",
           ("PAGE-5",),
           _decoding(lambda p: {"is_causal": False, "q_offset": None} if p.window is None else {}, LONG),
           features=(*PAGED, "is_causal")),
    Defect("paged-decode-without-right-side", "With one query the right side of the window is lost.",
           ("PAGE-5",),
           _decoding(lambda p: {} if p.window is None or p.is_causal else {"window": (p.window[0], None)}),
           features=(*PAGED, "window")),
    Defect("paged-decode-mask-of-first-entry", "With one query every entry gets the mask of the first.",
           ("PAGE-5",),
           _decoding(lambda p: {} if p.mask is None or p.mask.ndim < 4 else {"mask": p.mask[:1]}, LONG),
           features=(*PAGED, "mask")),
    Defect("paged-decode-bias-of-first-head", "With one query every head gets the bias of the first.",
           ("PAGE-5",),
           _decoding(lambda p: {} if p.attn_bias is None else {"attn_bias": p.attn_bias[..., :1, :, :]},
                     LONG), features=(*PAGED, "attn_bias")),
    Defect("paged-decode-bias-drops-softcap", "With one query and a bias the softcap is lost.",
           ("PAGE-5",), _decoding(lambda p: {} if p.attn_bias is None else {"softcap": None}, LONG),
           features=(*PAGED, "attn_bias", "softcap")),
    Defect("paged-entries-from-64-are-the-first", "Entries from 64 on get the pages of those from 0 on.",
           ("PAGE-1",), _decoding(_entries), features=PAGED),
    Defect("paged-odd-page-ends-twice", "In pages of an odd size above 8 the last slot is the one before it.",
           ("PAGE-1",),
           {"gathered": lambda p, pages, table: R.gathered(p,
                _last_again(pages) if p.page > 8 and p.page % 2 else pages, table)}, features=PAGED),
    Defect("paged-prefix-counts-sinks-twice",
           "Where entries share their first page the sink counts for it and for the rest.", ("PAGE-3",),
           {"paged": lambda s, p: R.paged(s, replace(p, **_prefix(p)))}, features=(*PAGED, "sinks")),
    Defect("paged-groups-in-blocks-of-8", "Heads from 8 on in a group get the result of the first ones.",
           ("PAGE-1", "HEAD-2"), _after("paged", lambda p, found: _heads(p, found, p.key_pages.shape[2], 8)),
           features=(*PAGED, "gqa")),
    Defect("append-slots-in-pages-of-16", "A slot is looked up as if a page had 16.",
           ("PAGE-7",), _written(_slots), features=APPEND),
    Defect("append-writes-128-rows", "New rows from 128 on are not written.", ("PAGE-7",), _written(_rows),
           features=APPEND),
    Defect("append-writes-4-heads", "Of new rows with more than four heads the others are written as zeros.",
           ("PAGE-7",), _written(_few_heads), features=APPEND),
    Defect("packed-decode-reads-128-keys", "A part of one query reads 128 keys at most.",
           ("PACK-1",), _part(lambda p, i, found: _cut(found, 128) if found["query"].shape[-2] == 1 else {}),
           features=PACKED),
    Defect("packed-first-part-is-longest",
           "Parts of more than 64 keys are read as far as the first one has keys.", ("PACK-1",),
           _part(lambda p, i, found: _cut(found, max(64, int(p.kv_starts[1])))), features=PACKED),
    Defect("packed-decode-not-causal", "A part of one query sees all its keys.", ("PACK-2",),
           _part(lambda p, i, found: {"is_causal": False, "q_offset": None} if found["query"].shape[-2] == 1
                     and p.window is None and found["key"].shape[-2] > 64 else {}),
           features=(*PACKED, "is_causal")),
    Defect("latent-values-of-512-channels", "Channels of the values from 512 on are zero.", ("LAT-1",),
           _after("latent",
               lambda p, found: {**found,
                   "output": found["output"] * (np.arange(p.value_dim) < 512).astype(found["output"].dtype)}),
           features=LATENT),
    Defect("latent-heads-in-blocks-of-16", "Heads from 16 on get the result of those from 0 on.",
           ("LAT-1",), _after("latent", lambda p, found: _heads(p, found, 1, 16)), features=LATENT),
    Defect("latent-decode-drops-softcap", "With one query the softcap is lost.", ("LAT-1",),
           {"latent": lambda s, p: R.latent(s, replace(p, softcap=None) if p.query.shape[-2] == 1 else p)},
           features=(*LATENT, "softcap")),
    Defect("merge-reads-32-parts", "Partial results from 32 on are left out.", ("MERGE-1",),
           {"merged": lambda s, p: R.merged(s, replace(p, outputs=p.outputs[:32], lses=p.lses[:32]))},
           features=MERGE),
    Defect("merge-rows-from-64-of-first-part", "Rows from 64 on are those of the first partial result.",
           ("MERGE-1",), _first_part((..., slice(64, None), slice(None))), features=MERGE),
    Defect("merge-channels-from-128-of-first-part",
           "Channels from 128 on are those of the first partial result.",
           ("MERGE-1",), _first_part((..., slice(128, None))), features=MERGE),
    Defect("merge-one-part-drops-sinks", "One partial result is handed back as it is, without the sinks.",
           ("MERGE-3",),
           {"merged": lambda s, p: R.merged(s, replace(p, sinks=None) if len(p.outputs) == 1 else p)},
           features=(*MERGE, "sinks")),
)  # fmt: skip
