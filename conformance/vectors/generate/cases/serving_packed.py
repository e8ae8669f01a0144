"""Parts of different lengths, one behind the other in one array: each is an attention of its own."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.generate.serving_drafts import pack, starts

# fmt: off

OF = "serving/packed-"


def whole(*numbers: int) -> Any:
    """Offsets, lengths or starts as 64-bit integers."""
    return np.array(numbers, np.int64)


def drafts() -> Iterator[Draft]:
    """Parts as such, then what counts inside a part, then sizes of kernels, then what is refused."""
    yield from _parts()
    yield from _inside()
    yield from _contents()
    yield from _sizes()
    yield from _refused()


def _parts() -> Iterator[Draft]:
    yield pack(f"{OF}parts",
        "Two parts of unequal lengths, grouped heads, values wider than keys; rows behind the last part are NaN.",
        "PACK-1", "PACK-5", heads=4, kv_heads=2, d_v=5, spare=(1, 2))
    yield pack(f"{OF}one-part", "One part is an ordinary call.", "PACK-1", q_lens=(4,), kv_lens=(6,))
    yield pack(f"{OF}equal-parts", "Parts of equal lengths, which some kernels take as one batch.", "PACK-1",
        q_lens=(3, 3, 3), kv_lens=(4, 4, 4), return_lse=True)
    yield pack(f"{OF}empty-parts",
        "Parts without queries, without keys and without both, first, in the middle and last.", "PACK-4",
        q_lens=(0, 2, 0, 3, 1, 0), kv_lens=(2, 3, 0, 0, 4, 1), return_lse=True)
    yield pack(f"{OF}part-without-keys",
        "Queries of a part without keys stand between parts with many: they get zeros and an lse of -inf.",
        "PACK-4", q_lens=(1, 2, 1), kv_lens=(5, 0, 6), heads=2, return_lse=True)
    yield pack(f"{OF}all-parts-empty",
        "Every start is zero: no row of the arrays belongs to a part, and all of them are NaN.",
        "PACK-4", "PACK-5", q_lens=(0, 0, 0), kv_lens=(0, 0, 0), spare=(3, 4), return_lse=True)
    yield pack(f"{OF}no-parts", "One start and no part: there is nothing to compute, and that is no mistake.",
        "PACK-4", "PACK-5", q_lens=(), kv_lens=(), spare=(2, 3))
    yield pack(f"{OF}no-queries", "Three parts of which none has a query: the output has no row.", "PACK-4",
        q_lens=(0, 0, 0), kv_lens=(2, 0, 3), return_lse=True)
    yield pack(f"{OF}many-parts", "Eleven parts of one to four rows, some of them empty.", "PACK-1", "PACK-4",
        q_lens=(1, 2, 1, 0, 3, 1, 1, 4, 0, 2, 1), kv_lens=(4, 1, 0, 2, 3, 1, 2, 4, 1, 1, 3), heads=2,
        return_lse=True)
    yield pack(f"{OF}starts-int32", "Starts are 32-bit integers.", "PACK-1", "PACK-6",
        q_lens=(2, 1, 3), kv_lens=(1, 4, 2), q_starts=np.array([0, 2, 3, 6], np.int32),
        kv_starts=np.array([0, 1, 5, 7], np.int32))
    yield pack(f"{OF}decode", "One query a part against many keys, few and one.", "PACK-1",
        q_lens=(1, 1, 1, 1), kv_lens=(9, 1, 4, 6), heads=4, kv_heads=1, return_lse=True)


def _inside() -> Iterator[Draft]:
    lengths: dict[str, Any] = {"q_lens": (3, 1, 4), "kv_lens": (5, 6, 4)}
    last = whole(2, 5, 0)
    yield pack(f"{OF}causal",
        "Causality counts queries and keys from the start of their part; without an offset where the lengths agree.",
        "PACK-2", q_lens=(3, 1, 4), kv_lens=(3, 1, 4), is_causal=True)
    yield pack(f"{OF}causal-offset-of-each-part",
        "Each part has an offset of its own, which puts its last query at its last key.", "PACK-2", "PACK-3",
        **lengths, is_causal=True, q_offset=last, return_lse=True)
    yield pack(f"{OF}causal-one-offset", "One offset for all parts.", "PACK-2", "PACK-3",
        **lengths, is_causal=True, q_offset=1)
    yield pack(f"{OF}offsets-int32",
        "Offsets are 32-bit integers; one is negative, so that the first queries of its part see no key.",
        "PACK-3", "MASK-3",
        **lengths, is_causal=True, q_offset=np.array([-2, 3, 1], np.int32), return_lse=True)
    yield pack(f"{OF}window", "A window counts from the start of the part.", "PACK-2",
        **lengths, window=(1, 1), q_offset=last)
    yield pack(f"{OF}window-causal", "A window that is open to the right, under causality.", "PACK-2",
        q_lens=(4, 5), kv_lens=(4, 7), window=(1, None), is_causal=True, q_offset=whole(0, 2))
    yield pack(f"{OF}softcap-scale", "Softcap and scale act in every part.", "PACK-1", "ATT-5",
        **lengths, softcap=1.5, scale=0.75, heads=2)
    yield pack(f"{OF}sinks", "The sink of a head counts in every row of every part.", "PACK-1", "ATT-12",
        **lengths, sinks=Draws(f"{OF}sinks:sinks").gauss(3), return_lse=True)
    yield pack(f"{OF}all-options",
        "Grouped heads, causality, window, softcap, scale, sinks and lse together.", "PACK-1", "PACK-2",
        "PACK-3", **lengths, heads=4, kv_heads=2, d_v=3, is_causal=True, window=(3, 0), q_offset=last,
        softcap=2.0, scale=0.5, sinks=Draws(f"{OF}all-options:sinks").gauss(4), return_lse=True)


def _contents() -> Iterator[Draft]:
    draws = Draws(f"{OF}nan-in-one-part")
    value = draws.gauss(2, 9, 4)
    value[:, 4] = np.nan
    key = draws.gauss(2, 9, 4)
    key[0, 3] = np.inf
    yield pack(f"{OF}nan-in-one-part",
        "NaN and infinity in keys and values of the middle part reach its rows and no others.",
        "PACK-1", "IND-3", q_lens=(2, 2, 2), kv_lens=(3, 3, 3), heads=2, key=key, value=value)
    draws = Draws(f"{OF}large-neighbour")
    far = draws.gauss(2, 8, 4, bits=6)
    far[:, 4:] *= 64.0
    yield pack(f"{OF}large-neighbour",
        "The logits of one part are far above those of its neighbour, which has a largest logit of its own.",
        "PACK-1", "ATT-2", q_lens=(3, 2), kv_lens=(4, 4), heads=2, key=far, return_lse=True)
    yield pack(f"{OF}digits", "Operands of 24 bits.", "PACK-1", "NUM-8",
        q_lens=(3, 4), kv_lens=(6, 5), heads=2, bits=24, only=("float64", "float32"))


def _sizes() -> Iterator[Draft]:
    yield pack(f"{OF}tiles",
        "Parts that end within tiles of 16, 64 and 128 keys; queries of some rows are judged.",
        "PACK-1", "PACK-2", q_lens=(17, 1, 33), kv_lens=(65, 129, 33), heads=4, kv_heads=2, d_k=32, d_v=32,
        is_causal=True, q_offset=whole(48, 128, 0), rows=(0, 15, 16, 17, 18, 34, 50), return_lse=True)
    yield pack(f"{OF}wide", "Prompts beside single queries, with rows of 128 channels.", "PACK-1",
        q_lens=(1, 20, 1), kv_lens=(130, 20, 65), heads=2, kv_heads=1, d_k=128, d_v=128,
        rows=(0, 1, 13, 20, 21), return_lse=True)
    yield pack(f"{OF}starts-beside-tiles",
        "Parts of 15, 16 and 17 rows: every second one starts within a tile.", "PACK-1", "PACK-2",
        q_lens=(15, 16, 17), kv_lens=(16, 17, 31), heads=1, d_k=8, is_causal=True, q_offset=whole(1, 1, 14),
        spare=(3, 3))


def refused(name: str, note: str, *covers: str, **given: Any) -> Draft:
    """A packed call that is wrong in one thing."""
    return pack(f"serving/refused-packed-{name}", note, *covers, raises=True, like=f"{OF}refused", **given)


def _refused() -> Iterator[Draft]:
    d = Draws(f"{OF}refused-shapes")
    yield refused("first-start", "The first start of the queries is 1.", "PACK-6", q_starts=whole(1, 2, 5))
    yield refused("falling-starts", "A start of the keys is below the one before it.", "PACK-6",
        q_lens=(2, 3, 1), kv_lens=(3, 4, 1), kv_starts=whole(0, 7, 3, 8))
    yield refused("last-start", "The last start lies behind the queries.", "PACK-6", q_starts=whole(0, 2, 6))
    yield refused("last-key-start", "The last start lies behind the keys.", "PACK-6",
        kv_starts=whole(0, 3, 8))
    yield refused("negative-start", "A start is below zero.", "PACK-6", q_starts=whole(0, -1, 5))
    yield refused("starts-of-two-lengths", "There are more starts of keys than of queries.", "PACK-6",
        kv_starts=whole(0, 3, 5, 7))
    yield refused("starts-rank", "The starts have two axes.", "PACK-6", q_starts=starts((2, 3))[None])
    yield refused("starts-kind", "The starts are floating.", "DTYPE-7", q_starts=np.array([0.0, 2.0, 5.0]))
    yield refused("rank", "The query has a batch axis.", "PACK-6", query=d.gauss(1, 3, 5, 4))
    yield refused("key-width", "The key has another width than the query.", "SHAPE-5", key=d.gauss(3, 7, 5))
    yield refused("groups", "Four query heads over three key heads.", "HEAD-3", query=d.gauss(4, 5, 4))
    yield refused("offset-missing", "Causality without an offset, where a part has more keys than queries.",
        "MASK-7", is_causal=True)
    yield refused("offsets-of-another-length", "Three offsets for two parts.", "PACK-3",
        is_causal=True, q_offset=whole(1, 1, 1))
