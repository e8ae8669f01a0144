"""Serving calls at the sizes that kernels have: long decoding, many entries, parts and heads, pages of 9, 32 and 64."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.cases.serving_packed import whole
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.random_inputs import Draws, exact
from conformance.vectors.generate.serving_drafts import append, latent, merge, pack, page

# fmt: off

SINKS = exact([1.5, -0.75])


def drafts() -> Iterator[Draft]:
    """One query over many pages, entries and pages, writes, parts, latent rows, merges."""
    yield from _decoding()
    yield from _pages()
    yield from _parts()
    yield from _rows()


def _decoding() -> Iterator[Draft]:
    """One query over 257 to 2,100 keys, which kernels attend in parts and merge."""
    draws = Draws("serving/long")
    plain: dict[str, Any] = {"size": 16, "heads": 2, "kv_heads": 1, "q_len": 1, "d_k": 2, "d_v": 2}
    yield page("serving/paged-decode-1100-sinks", "One query over 1,100 keys, and one over 300, with sinks.",
        "PAGE-5", lengths=(1100, 300), sinks=SINKS, return_lse=True, **plain)
    yield page("serving/paged-decode-2100-causal",
        "One query that stands before the end of 2,100 keys, and one before that of 300: later keys are hidden.",
        "PAGE-5", lengths=(2100, 300), is_causal=True, q_offset=whole(2070, 140), **plain)
    yield page("serving/paged-decode-window-right",
        "A window with a right side, and no causality, for one query.", "PAGE-5",
        lengths=(300, 20), window=(120, 3), q_offset=whole(200, 9), **plain)
    yield page("serving/paged-decode-mask", "A mask of each entry's own over 300 and 140 keys.",
        "PAGE-5", "MASK-1", lengths=(300, 140), mask=draws.mask(2, 1, 1, 19 * 16 + 16), columns=20, **plain)
    yield page("serving/paged-decode-bias-softcap", "A bias of each head's own and a softcap, over 300 keys.",
        "PAGE-5", "ATT-7", lengths=(300, 140), attn_bias=draws.gauss(1, 2, 1, 20 * 16, sigma=1.5), columns=20,
        softcap=4.0, **plain)
    yield page("serving/paged-prefix-sinks",
        "Two entries share their first page, and each counts its sink once.", "PAGE-3", "PAGE-5",
        lengths=(5, 4), size=2, table=((3, 1, 4), (3, 0)), heads=2, sinks=SINKS, return_lse=True)
    yield page("serving/paged-length-zero-sinks",
        "An entry without keys, beside one with three: its lse is the sink.", "PAGE-4", "MASK-16",
        lengths=(0, 3), heads=2, sinks=SINKS, return_lse=True)


def _pages() -> Iterator[Draft]:
    yield page("serving/paged-queries-66",
        "Queries beyond 64, a window and a softcap over pages of 16; the last are judged.", "PAGE-5",
        lengths=(70, 66), size=16, heads=1, q_len=66, d_k=2, is_causal=True, window=(20, 0), softcap=3.0,
        q_offset=whole(4, 0), rows=(0, 31, 63, 64, 65))
    yield page("serving/paged-pages-of-9", "Pages of 9, which no power of two divides.", "PAGE-1",
        lengths=(2, 22), size=9, heads=2, q_len=1)
    yield page("serving/paged-entries-70", "Seventy entries of one or two keys, with a page of 1 for each.",
        "PAGE-1", lengths=tuple(1 + n % 2 for n in range(70)), size=1, heads=1, q_len=1, d_k=2)
    yield page("serving/paged-groups-of-12", "Twelve query heads read one key head.", "PAGE-1", "HEAD-2",
        lengths=(7, 5), heads=24, kv_heads=2, q_len=1, d_k=2)
    yield append("serving/append-pages-of-32", "Slots in the second half of pages of 32.", "PAGE-7",
        pages=3, size=32, slots=(21, 47, 95), d_k=2, d_v=2)
    yield append("serving/append-pages-of-64", "Slots of 32 bits in pages of 64.", "PAGE-7",
        pages=2, size=64, slots=(45, 100), d_k=2, d_v=2, integers=np.int32)
    yield append("serving/append-rows-140", "A hundred and forty new rows of five heads, in no order.",
        "PAGE-7", pages=10, size=16, kv_heads=5, d_k=2, d_v=2, slots=tuple(n * 37 % 160 for n in range(140)))


def _parts() -> Iterator[Draft]:
    yield pack("serving/packed-decode-300", "Parts of one query over 300, 129 and 5 keys.", "PACK-1",
        q_lens=(1, 1, 1), kv_lens=(300, 129, 5), heads=2, d_k=2, return_lse=True)
    yield pack("serving/packed-decode-beside-chunk",
        "A part of one query that stands before its end, beside a chunk: causal.", "PACK-2", "PACK-3",
        q_lens=(1, 4), kv_lens=(70, 66), heads=2, d_k=2, is_causal=True, q_offset=whole(40, 62))
    yield pack("serving/packed-no-keys-beside-65",
        "A part without keys before one of 65: the longest is not the first.", "PACK-4",
        q_lens=(2, 3), kv_lens=(0, 65), heads=2, d_k=2, return_lse=True)


def _rows() -> Iterator[Draft]:
    yield latent("serving/latent-heads-20-wide",
        "Twenty heads, values of 520 channels and a softcap, one query.", "LAT-1",
        batch=(1,), heads=20, q_len=1, kv_len=3, value_dim=520, rotary=4, scale=0.0625, softcap=5.0, bits=5)
    yield merge("serving/merge-parts-34", "Thirty-four partial results, the largest among the last.",
        "MERGE-1", "MERGE-5", parts=34, heads=2, sigma=3.0)
    yield merge("serving/merge-rows-70-wide", "Seventy rows of 130 channels.", "MERGE-1",
        batch=(), heads=1, q_len=70, d_v=130, bits=5)
    yield merge("serving/merge-one-sinks", "One partial result and the sinks.", "MERGE-3",
        parts=1, heads=2, sinks=SINKS)
