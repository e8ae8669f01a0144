"""Keys and values in pages that a table names for each entry; new ones are written to slots."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.cases.serving_packed import whole
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.generate.serving_drafts import append, page

# fmt: off

OF = "serving/paged-"
HUGE = 2**31 - 1


def drafts() -> Iterator[Draft]:
    """Tables and lengths, options, writes, sizes of kernels, writes alone, then what is refused."""
    yield from _tables()
    yield from _lengths()
    yield from _options()
    yield from _writes()
    yield from _sizes()
    yield from _appends()
    yield from _refused()


def _tables() -> Iterator[Draft]:
    yield page(f"{OF}tables",
        "Two entries with pages of 2 in no order under grouped heads; every cell that nobody may read is NaN.",
        "PAGE-1", "PAGE-2", heads=4, kv_heads=2, d_v=5, return_lse=True)
    yield page(f"{OF}in-order",
        "One entry whose pages are in order from the first on, full to the last slot.", "PAGE-1",
        lengths=(6,), table=((0, 1, 2),), columns=3, pages=3)
    yield page(f"{OF}in-reverse",
        "The pages of an entry stand in reverse order: they are no single block of memory.", "PAGE-1",
        lengths=(6, 4), table=((4, 3, 2), (1, 0)), return_lse=True, is_causal=True, q_offset=whole(4, 2))
    yield page(f"{OF}shared-prefix", "Two entries share their first two pages and differ in the third.",
        "PAGE-3", lengths=(6, 5), table=((2, 5, 1), (2, 5, 4)))
    yield page(f"{OF}page-twice", "One page stands twice in a table, so that its keys count twice.", "PAGE-3",
        lengths=(6, 4), table=((3, 1, 3), (2, 2)), return_lse=True)
    for name, numbers in {
        "minus-one": (-1,),
        "out-of-range": (8, -7, 100),
        "huge": (HUGE, -(2**31)),
        "valid-pages": (0, 1, 2, 3),
    }.items():
        yield page(f"{OF}behind-{name}",
            f"Behind the length the table holds {' and '.join(map(str, numbers))}, and nobody looks there.",
            "PAGE-2", columns=5, behind=numbers, return_lse=True)
    yield page(f"{OF}int32", "Table, lengths and offsets are 32-bit integers.", "PAGE-1", "DTYPE-7",
        lengths=(5, 3), table=((4, 1, 3), (2, 5)),
        page_table=np.array([[4, 1, 3, HUGE], [2, 5, -1, HUGE]], np.int32),
        kv_lengths=np.array([5, 3], np.int32), q_offset=np.array([3, 1], np.int32), is_causal=True)


def _lengths() -> Iterator[Draft]:
    yield page(f"{OF}length-zero",
        "Entries without any key stand first, between others and last; their tables hold nothing.", "PAGE-4",
        lengths=(0, 3, 0, 2, 0), return_lse=True)
    yield page(f"{OF}all-lengths-zero", "No entry has a key, and every page is NaN.", "PAGE-4",
        lengths=(0, 0), columns=2, return_lse=True)
    yield page(f"{OF}no-columns", "The tables have no column.", "PAGE-4",
        lengths=(0, 0), columns=0, return_lse=True)
    yield page(f"{OF}no-entries", "There are pages and no entry.", "PAGE-4", lengths=(), columns=2, pages=3)
    yield page(f"{OF}last-slots", "Lengths end at every slot of a page of 4, one of them at its last.",
        "PAGE-2", lengths=(1, 2, 3, 4, 5, 8), size=4, return_lse=True)
    yield page(f"{OF}infinity-behind",
        "The slots behind a length hold +inf and not NaN: a product with zero shows it.", "PAGE-2",
        unread=float("inf"), size=4, lengths=(5, 3))
    yield page(f"{OF}large-behind",
        "The slots behind a length hold large numbers, which would have all the weight.", "PAGE-2",
        unread=256.0, size=4, lengths=(6, 3), return_lse=True)
    yield page(f"{OF}page-of-one", "A page has one slot, and the table lists keys.", "PAGE-1",
        size=1, lengths=(5, 2), return_lse=True)
    yield page(f"{OF}page-of-three", "A page has three slots: its size is no power of two.", "PAGE-1",
        size=3, lengths=(7, 4))


def _options() -> Iterator[Draft]:
    offsets = whole(3, 1)
    yield page(f"{OF}causal", "Causality with an offset for each entry: two queries at the end of each.",
        "PAGE-5", lengths=(5, 3), is_causal=True, q_offset=offsets)
    yield page(f"{OF}causal-one-offset", "One offset for all entries.", "PAGE-5",
        lengths=(5, 3), is_causal=True, q_offset=1, return_lse=True)
    yield page(f"{OF}window", "A window counts keys and not pages.", "PAGE-5",
        lengths=(7, 6), window=(2, 0), q_offset=whole(5, 4))
    d = Draws(f"{OF}bias:arrays")
    yield page(f"{OF}mask", "A mask has a column for each slot of the tables, used or not.",
        "PAGE-5", "MASK-1", lengths=(5, 3), mask=d.mask(2, 3, 2, 8, share=0.8) | (np.arange(8) == 0))
    yield page(f"{OF}bias", "A bias has a column for each slot of the tables; behind the lengths it is NaN.",
        "PAGE-5", "ATT-7", lengths=(5, 3),
        attn_bias=np.where(np.arange(8) < np.array([5, 3])[:, None, None, None], d.gauss(2, 3, 2, 8), np.nan))
    yield page(f"{OF}bias-rank-2", "A bias of rank 2 serves all entries and heads.", "PAGE-5",
        lengths=(5, 3), attn_bias=d.gauss(2, 8))
    yield page(f"{OF}softcap-scale", "Softcap and scale over pages.", "PAGE-1", "ATT-5",
        softcap=1.5, scale=0.75, heads=2)
    yield page(f"{OF}sinks", "A sink counts once in a row, however many pages it reads.", "PAGE-1", "ATT-12",
        lengths=(7, 5), sinks=Draws(f"{OF}sinks:sinks").gauss(3), return_lse=True)
    yield page(f"{OF}all-options",
        "Grouped heads, causality, window, softcap, scale, sinks and lse together.", "PAGE-1", "PAGE-5",
        lengths=(9, 6, 2), size=4, heads=4, kv_heads=2, d_v=3, is_causal=True, window=(4, 0),
        q_offset=whole(7, 4, 0), softcap=2.0, scale=0.5, sinks=Draws(f"{OF}all-options:sinks").gauss(4),
        return_lse=True)


def _writes() -> Iterator[Draft]:
    yield page(f"{OF}write", "The last key of each entry is written in the call that reads it.",
        "PAGE-7", "PAGE-10", lengths=(5, 3), table=((4, 1, 3), (2, 5)), write=(6, 10), q_len=1)
    yield page(f"{OF}write-chunk",
        "Two new keys of each entry, in no order, one hidden from the first query; slots of -1 write nothing.",
        "PAGE-7", "PAGE-8", "PAGE-10", lengths=(6, 4), table=((4, 1, 3), (2, 5)),
        write=(7, -1, 10, 6, 11, -1), is_causal=True, q_offset=whole(4, 2), return_lse=True)
    yield page(f"{OF}write-elsewhere",
        "What is written lies in a page that no table names, and in a slot behind a length.",
        "PAGE-7", "PAGE-9", lengths=(5, 3), table=((4, 1, 3), (2, 5)), pages=8, write=(15, 7))
    yield page(f"{OF}write-over",
        "A key that is there already is written anew, in a page that two entries share.", "PAGE-7", "PAGE-3",
        lengths=(4, 4), table=((2, 1), (2, 3)), unread=0.5, write=(5,))
    yield page(f"{OF}write-nothing", "Every slot is -1: the pages are handed back as they are.",
        "PAGE-8", "PAGE-9", write=(-1, -1), q_len=1)
    yield page(f"{OF}write-all-options", "Grouped heads, unequal widths and pages of 4 with writes.",
        "PAGE-7", "PAGE-9", "PAGE-10", lengths=(9, 6), size=4, table=((5, 2, 4), (1, 3)), heads=4, kv_heads=2,
        d_v=3, write=(16, -1, 13), sinks=Draws(f"{OF}write-all-options:sinks").gauss(4), softcap=2.0,
        return_lse=True, is_causal=True, q_offset=whole(7, 4))


def _sizes() -> Iterator[Draft]:
    for name, size, lengths, width, kv_heads in (
        ("pages-of-16", 16, (129, 17, 64), 32, 2),
        ("pages-of-256", 256, (257, 3), 16, 1),
        ("pages-of-64", 64, (65, 1), 64, 1),
    ):
        yield page(f"{OF}{name}",
            f"Pages of {size} with {' and '.join(map(str, lengths))} keys and rows of {width} channels.",
            "PAGE-1", "PAGE-2", lengths=lengths, size=size, heads=4, kv_heads=kv_heads, q_len=1, d_k=width,
            d_v=width, behind=(-1, HUGE), return_lse=True)
    yield page(f"{OF}chunk-over-pages",
        "Twenty queries at the end of entries whose pages of 16 they cross, causal; some rows are judged.",
        "PAGE-1", "PAGE-5", lengths=(49, 37), size=16, heads=2, q_len=20, d_k=32, is_causal=True,
        q_offset=whole(29, 17), rows=(0, 2, 3, 14, 15, 19), return_lse=True)
    yield page(f"{OF}many-small-pages", "Seventy keys in pages of 1 and of an entry with three.", "PAGE-1",
        lengths=(70, 3), size=1, heads=2, kv_heads=1, q_len=1, d_k=16, return_lse=True)
    yield page(f"{OF}window-over-pages", "A window that starts within a page of 16, far from the first key.",
        "PAGE-5", lengths=(75, 50), size=16, heads=2, q_len=2, d_k=16, is_causal=True, window=(40, 0),
        q_offset=whole(73, 48), return_lse=True)


def _appends() -> Iterator[Draft]:
    of = "serving/append-"
    yield append(f"{of}slots",
        "Three new keys and values go to three slots in no order; every other cell keeps its bits, NaN and -0 too.",
        "PAGE-7", "PAGE-9")
    yield append(f"{of}minus-one", "Slots of -1 write nothing, not to the last cell either.",
        "PAGE-8", "PAGE-9", slots=(-1, 4, -1, 1))
    yield append(f"{of}all-minus-one", "Every slot is -1, and nothing is written.", "PAGE-8", "PAGE-9",
        slots=(-1, -1))
    yield append(f"{of}nothing-new", "There is nothing new.", "PAGE-9", slots=())
    yield append(f"{of}every-slot", "Every slot is written, the last and the first too.", "PAGE-7",
        slots=(7, 2, 0, 5, 1, 6, 3, 4))
    yield append(f"{of}int32", "Slots are 32-bit integers.", "PAGE-7", slots=(6, -1, 3), integers=np.int32)
    yield append(f"{of}page-of-one", "A page has one slot.", "PAGE-7", pages=5, size=1, slots=(4, 2))
    yield append(f"{of}page-of-16", "Pages of 16, the first and last slots of two of them.",
        "PAGE-7", "PAGE-9", pages=3, size=16, slots=(15, 16, 31, 47, 32), d_k=8, d_v=8)
    yield append(f"{of}page-of-three", "A page of three slots.", "PAGE-7",
        pages=3, size=3, slots=(8, 4, -1, 3))
    yield append(f"{of}one-head", "One head, with values wider than keys.", "PAGE-7",
        kv_heads=1, d_k=3, d_v=5)


def refused(name: str, note: str, *covers: str, **given: Any) -> Draft:
    """A paged call that is wrong in one thing."""
    given = {"table": ((4, 1, 3), (2, 5)), **given}
    return page(f"serving/refused-paged-{name}", note, *covers, raises=True, like=f"{OF}refused", **given)


def _refused() -> Iterator[Draft]:
    d = Draws(f"{OF}refused-shapes")
    table = whole(4, 1, 3, -1, 2, 5, -1, -1).reshape(2, 4)

    def with_page(number: int) -> Any:
        changed = table.copy()
        changed[0, 1] = number
        return changed

    yield refused("length", "A length is more than the table holds.", "PAGE-6",
        behind=(0,), kv_lengths=whole(9, 3))
    yield refused("page-too-large", "A page within the length does not exist.", "PAGE-6",
        page_table=with_page(7))
    yield refused("page-minus-one", "A page within the length is -1.", "PAGE-6", page_table=with_page(-1))
    yield refused("table-rows", "The table has a row too many.", "PAGE-6",
        page_table=np.zeros((3, 4), np.int64))
    yield refused("table-kind", "The table is floating.", "DTYPE-7", page_table=table.astype(np.float64))
    yield refused("lengths-shape", "There is a length too many.", "PAGE-6", kv_lengths=whole(5, 3, 1))
    yield refused("pages-shape", "Values have pages of another size.", "PAGE-6",
        value_pages=d.gauss(7, 3, 3, 4))
    yield refused("key-width", "Keys have another width than queries.", "SHAPE-5", query=d.gauss(2, 3, 2, 5))
    yield refused("groups", "Four query heads over three key heads.", "HEAD-3", query=d.gauss(2, 4, 2, 4))
    yield refused("offset-missing", "Causality without an offset.", "PAGE-5", is_causal=True)
    yield refused("offset-missing-window",
        "A window without an offset, where the queries are as many as the slots.", "PAGE-5",
        window=(1, 1), query=d.gauss(2, 3, 8, 4))
    yield refused("half-a-write", "New keys and values without slots.", "PAGE-11",
        new_key=d.gauss(2, 3, 4), new_value=d.gauss(2, 3, 4))
    yield refused("equal-slots", "Two new keys have one slot.", "PAGE-11", write=(6, 10, 6))
    yield refused("slot-too-large", "A slot lies behind the last page.", "PAGE-11", write=(6, 14))
    yield refused("slot-minus-two", "A slot is -2, which is no slot.", "PAGE-11", write=(6, -2))
    yield refused("new-shape", "New values are fewer than slots.", "PAGE-11",
        write=(6, 10), new_value=d.gauss(1, 3, 4))
    for name, note, slots in (
        ("equal-slots", "Two new keys have one slot.", (3, 0, 3)),
        ("slot-too-large", "A slot lies behind the last page.", (3, 8)),
        ("slot-minus-two", "A slot is -2, which is no slot.", (3, -2)),
    ):
        yield append(f"serving/refused-append-{name}", note, "PAGE-11", slots=slots, raises=True)
    yield append("serving/refused-append-width", "New keys have another width than the pages.", "PAGE-11",
        raises=True, new_key=d.gauss(3, 2, 5))
