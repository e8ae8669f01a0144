"""Keys in pages: which cells new keys and values go to, what reads see of them, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.page_tables import Pages, sizes
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import without

NEEDS, WRITES = ("paged",), ("append",)


def _written(change: Callable[[Served, Pages], Pages]) -> Change:
    return {"written": lambda s, p: change(p, R.written(s, p))}


def _minus_one(p: Served, pages: Pages) -> Pages:
    """A slot of -1 is the last one, as an index of Python is."""
    for name, new in (("key_pages", p.new_key), ("value_pages", p.new_value)):
        if (p.slots == -1).any():
            pages[name].reshape(-1, *new.shape[1:])[-1] = new[p.slots == -1][-1]
    return pages


def _minus_one_is_zero(p: Served, pages: Pages) -> Pages:
    for name, new in (("key_pages", p.new_key), ("value_pages", p.new_value)):
        if (p.slots == -1).any() and pages[name].size:
            pages[name][0, 0] = new[p.slots == -1][-1]
    return pages


def _zeros_elsewhere(p: Served, pages: Pages) -> Pages:
    """Pages are made anew, with what is written and zeros."""
    kept = np.zeros(p.cells, bool)
    kept[p.slots[p.slots != -1]] = True
    return {
        n: np.where(kept.reshape(-1, p.page)[:, :, None, None], x, x.dtype.type(0)) for n, x in pages.items()
    }


def _rest_of_page(p: Served, pages: Pages) -> Pages:
    """What stands in a page behind a slot that is written is zero after it."""
    written = set(p.slots[p.slots != -1].tolist())
    for slot in written:
        for behind in range(slot % p.page + 1, p.page):
            if slot - slot % p.page + behind not in written:
                for x in pages.values():
                    x[slot // p.page, behind] = 0
    return pages


def _no_nan(p: Served, pages: Pages) -> Pages:
    return {name: np.where(np.isnan(x), x.dtype.type(0), x) for name, x in pages.items()}


def _no_sign(p: Served, pages: Pages) -> Pages:
    return {name: x + x.dtype.type(0) for name, x in pages.items()}


def _in_order(p: Served, pages: Pages) -> Pages:
    """New keys go behind the first slot one after another."""
    slots = p.slots[p.slots != -1]
    order = np.sort(slots)
    for name, new in (("key_pages", p.new_key), ("value_pages", p.new_value)):
        pages[name].reshape(-1, *new.shape[1:])[order] = new[p.slots != -1]
    return pages


def _dropped(p: Served, pages: Pages) -> Pages:
    """What is new counts only the slots that are used: row t goes to the t-th of them."""
    kept = p.slots[p.slots != -1]
    for name, new in (("key_pages", p.new_key), ("value_pages", p.new_value)):
        pages[name].reshape(-1, *new.shape[1:])[kept] = new[: len(kept)]
    return pages


def _decoded(size: int) -> Change:
    """Slots are taken apart by another size of a page."""

    def written(s: Any, p: Served) -> Pages:
        page, place = np.divmod(p.slots, size)
        slots = np.where(p.slots == -1, -1, (page * p.page + np.minimum(place, p.page - 1)) % p.cells)
        kept = [int(n) for n in np.flatnonzero(slots != -1)]
        last = {int(slots[t]): t for t in kept}
        those = sorted(last.values())
        new = {n: getattr(p, n)[those] for n in ("new_key", "new_value")}
        return R.written(s, replace(p, slots=slots[those], **new))

    return {"written": written}


def _keys_for_values(p: Served, pages: Pages) -> Pages:
    """New values lie where new keys do, as wide as those."""
    width = min(p.new_key.shape[-1], p.new_value.shape[-1])
    kept = p.slots != -1
    cells = pages["value_pages"].reshape(-1, *p.new_value.shape[1:])
    cells[p.slots[kept], ..., :width] = p.new_key[kept][..., :width]
    return pages


def _in_place(s: Any, p: Served) -> Pages:
    """The operands are written to."""
    pages: Pages = R.written(s, p)
    for name, x in pages.items():
        getattr(p, name)[...] = x
    return pages


def _one_head(p: Served, pages: Pages) -> Pages:
    """Only the first head of what is new is written."""
    return {n: np.concatenate([x[:, :, :1], getattr(p, n)[:, :, 1:]], axis=2) for n, x in pages.items()}


def _accepting(*checks: str, then: Callable[[Served], Served] = lambda p: p) -> Change:
    return {
        "serving_checks": without(*checks),
        "paged": lambda s, p: R.paged(s, then(p)),
        "written": lambda s, p: R.written(s, then(p)),
    }


def _clipped(p: Served) -> Served:
    return replace(p, kv_lengths=np.minimum(p.kv_lengths, p.page_table.shape[1] * p.page))


def _wrapped(p: Served) -> Served:
    return replace(p, page_table=np.clip(p.page_table, 0, p.key_pages.shape[0] - 1))


def _within(p: Served) -> Served:
    return (
        p
        if p.slots is None
        else replace(p, slots=np.where((p.slots < 0) | (p.slots >= p.cells), -1, p.slots))
    )


def _no_offset(p: Served) -> Served:
    return replace(p, q_offset=0 if p.q_offset is None else p.q_offset)


DEFECTS = (
    Defect("append-minus-one-writes-the-last-cell",
           "A slot of -1 writes to the last cell, as an index from the end.",
           ("PAGE-8",), _written(_minus_one), origin="vllm-project/vllm#43810", features=WRITES),
    Defect("append-minus-one-writes-the-first-cell", "A slot of -1 writes to the first cell.",
           ("PAGE-8",), _written(_minus_one_is_zero), features=WRITES),
    Defect("append-other-cells-are-zero", "The pages that come back hold what is new and zeros.",
           ("PAGE-9",), _written(_zeros_elsewhere), features=WRITES),
    Defect("append-rest-of-the-page-is-zero",
           "What stands behind a new key in its page is zero afterwards, as the padding of a tile is written too.",
           ("PAGE-9",), _written(_rest_of_page), origin="tenstorrent/tt-metal#52671", features=WRITES),
    Defect("append-nan-becomes-zero", "NaN in cells that are not written becomes zero.",
           ("PAGE-9",), _written(_no_nan), features=WRITES),
    Defect("append-minus-zero-becomes-zero",
           "A -0 in cells that are not written becomes +0, as something is added to every cell.",
           ("PAGE-9",), _written(_no_sign), features=WRITES),
    Defect("append-in-order-of-slots",
           "What is new is written in the order of the slots, and not each row to its own.",
           ("PAGE-7",), _written(_in_order), features=WRITES),
    Defect("append-rows-without-a-slot-not-skipped",
           "Slots of -1 are dropped and their rows are not, so that later rows go to the wrong slot.",
           ("PAGE-8",), _written(_dropped), origin="vllm-project/vllm#13418", features=WRITES),
    Defect("append-slots-of-another-page-size", "Slots are taken apart into page and place by pages of 16.",
           ("PAGE-7",),
           **sizes(_decoded), origin="vllm-project/vllm#47056", features=WRITES),
    Defect("append-keys-written-for-values", "New keys are written to the pages of values.",
           ("PAGE-7",), _written(_keys_for_values), features=WRITES),
    Defect("append-first-head-only", "Only the first head of what is new is written.",
           ("PAGE-7",), _written(_one_head), features=WRITES),
    Defect("append-writes-to-its-operands", "The pages that were given are written to.",
           ("PAGE-9", "IND-5"), {"written": _in_place}, features=WRITES),
    Defect("paged-reads-before-writes",
           "Attention reads the pages as they were before the new keys and values are written.",
           ("PAGE-10",), {"seen": lambda p, after: {}}, features=(*NEEDS, *WRITES)),
    Defect("paged-reads-new-keys-and-old-values", "Attention reads the new keys and the values as they were.",
           ("PAGE-10",),
           {"seen": lambda p, after: {name: x for name, x in after.items() if name == "key_pages"}},
           features=(*NEEDS, *WRITES)),
    Defect("paged-length-beyond-the-table-accepted", "A length that is more than the table holds is cut.",
           ("PAGE-6",), _accepting("length beyond the table", then=_clipped),
           origin="Dao-AILab/flash-attention#2709", features=(*NEEDS, "validation")),
    Defect("paged-page-out-of-range-accepted",
           "A page within the length that does not exist is replaced by the nearest one that does.",
           ("PAGE-6",), _accepting("page out of range", then=_wrapped),
           origin="microsoft/onnxruntime#32391", features=(*NEEDS, "validation")),
    Defect("paged-offset-missing-accepted",
           "Causality or a window without an offset puts the first query at the first key.",
           ("PAGE-5",), _accepting("paged without offset", then=_no_offset), features=(*NEEDS, "validation")),
    Defect("append-equal-slots-accepted", "Of two new keys with one slot the last one is kept.",
           ("PAGE-11",), _accepting("slots that are equal"), features=(*WRITES, "validation")),
    Defect("append-slot-out-of-range-accepted", "A slot behind the last page, or below -1, writes nothing.",
           ("PAGE-11",), _accepting("slot out of range", then=_within), features=(*WRITES, "validation")),
)  # fmt: skip
