"""Caches in pages and rings: in which order slots are read, which of them are new, what is handed back."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, output
from conformance.defects.bank.tile_masks import ends
from conformance.defects.blocks.edges import Edges, begin_of, family
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import project
from conformance.defects.steps import Steps
from conformance.vectors.case import Array

PRESENT = ("present_key", "present_value")
SIZES = {f"in pages of {size}": size for size in (2, 3, 4, 5, 8, 16, 32, 64, 128)}


def _pages(index: Callable[[int], Array]) -> Callable[[int], Change]:
    """Pages that are read in another order, behind the last slot as zeros: number of pages -> which is read."""

    def read(x: Array, size: int) -> Array:
        length = x.shape[-2]
        pages = -(-length // size)
        slots = (index(pages)[:, None] * size + np.arange(size)).ravel()[:length]
        padded = np.concatenate(
            [x, np.zeros((*x.shape[:-2], pages * size - length, x.shape[-1]), x.dtype)], -2
        )
        return np.take(padded, slots, axis=-2) if length else x

    return lambda size: {
        "attend": lambda s, c, q, k, v: R.attend(s, c, q, read(k, size), read(v, size)),
    }


def _paged(make: Callable[[int], Change]) -> dict[str, Any]:
    """The change for pages of 4, and of other sizes, as fields of a Defect."""
    return varied({said: make(size) for said, size in SIZES.items()}, "in pages of 4")


def _new_in_front(c: Call, x: Array) -> Array:
    return np.concatenate([x[..., c.past :, :], x[..., : c.past, :]], axis=-2)


def _held(c: Call) -> int:
    """How many keys a ring for the window holds; all if its left is open."""
    if c.window is None or c.window[0] is None or c.past_key is None:
        return c.kv_len
    return min(int(c.window[0]) + 1, c.kv_len)


def _turned(c: Call, x: Array) -> Array:
    """A ring of as many slots as the window holds, in the order of its memory: slot j holds a key p of p % slots."""
    held = _held(c)
    kept = x[..., x.shape[-2] - held :, :]
    found: Array = np.roll(kept, c.kv_len % held, axis=-2) if held else kept
    return found


def _past_lengths(c: Call) -> Any:
    if c.kv_lengths is None:
        return None
    new = c.kv_len - c.past if c.past_key is not None else 0
    return c.columns < c.kv_lengths[..., None, None, None] + new


def _numbered(e: Edges) -> Change:
    """Causality and window count the keys from the start of their block."""

    def inside(c: Call) -> Array:
        return c.columns - begin_of(e(c.kv_len), c.columns)

    def by_window(c: Call, place: Any) -> Any:
        found = R.by_window(c, place)
        return None if found is None else np.take(found, inside(c), axis=-1)

    return {
        "by_causal": lambda c, place: inside(c) <= place if c.is_causal else None,
        "by_window": by_window,
    }


def _one_early(s: Steps, c: Call, query: Array, key: Array, value: Array) -> Any:
    """What is attended holds the new keys over the last of the past, and zeros in the last slot."""

    def moved(x: Array) -> Array:
        return np.concatenate(
            [x[..., : c.past - 1, :], x[..., c.past :, :], np.zeros_like(x[..., -1:, :])], axis=-2
        )

    return R.attend(s, c, query, *(moved(x) if c.past else x for x in (key, value)))


def _whole_page(size: int) -> Change:
    """The last page is read to its end: slots behind the length, and zeros behind the last slot."""

    def by_lengths(c: Call) -> Any:
        if c.kv_lengths is None:
            return None
        return c.columns < -(-c.kv_lengths // size)[..., None, None, None] * size

    def attend(s: Steps, c: Call, query: Array, key: Array, value: Array) -> Any:
        heads, weights, lse = R.attend(s, c, query, key, value)
        length = np.asarray(c.kv_len if c.kv_lengths is None else np.clip(c.kv_lengths, 0, c.kv_len))
        behind, place = c.kv_len + np.arange(size), s.place(c)
        shown = behind < (-(-length // size) * size)[..., None, None, None]
        if c.is_causal:
            shown = shown & (behind <= place)
        if c.window is not None:
            begin, end = ends(c, place)
            shown = shown & (behind >= begin) & (behind <= end)
        count: Array = np.broadcast_to(shown.sum(axis=-1), lse.shape).astype(c.wide)
        share = np.where(np.isneginf(lse), c.wide(0), 1 / (1 + count * np.exp(-lse))).astype(c.wide)
        return heads * share[..., None], weights * share[..., None], np.logaddexp(lse, np.log(count))

    return {"by_lengths": by_lengths, "attend": attend}


DEFECTS = (
    Defect("pages-in-reverse", "The pages of the cache are read in reverse order, the last one to its end.",
           ("CACHE-1", "ATT-1"),
           beyond=("kv_len", SIZES), **_paged(_pages(lambda pages: np.arange(pages)[::-1]))),
    Defect("pages-one-late", "Every page of the cache is read one place late, and the last one first.",
           ("CACHE-1", "ATT-1"),
           beyond=("kv_len", SIZES), **_paged(_pages(lambda pages: (np.arange(pages) - 1) % max(pages, 1)))),
    Defect("keys-numbered-within-their-block",
           "Causality and window alike count the keys from the start of their block or part.",
           ("MASK-6", "MASK-10"), **family(_numbered)),
    Defect("last-page-read-to-its-end",
           "The last block or page of keys is read to its end, so that the slots of zeros that fill it up take part.",
           ("MASK-12", "ATT-1"), **_paged(_whole_page)),
    Defect("new-keys-written-one-early",
           "New keys are written over the last of the past in what is attended; present is right.",
           ("CACHE-1",), {"attend": _one_early}, features=("cache",)),
    Defect("lengths-taken-for-past",
        "kv_lengths are taken for the lengths of the past, so that as many more slots are read as there are new keys.",
        ("MASK-12", "CACHE-3"), {"by_lengths": _past_lengths}, features=("kv_lengths", "cache")),
    Defect("past-cut-to-window",
           "Only as many keys are kept as the window of the last query holds, so that queries before it lose some.",
           ("CACHE-1", "MASK-10"),
           after("by_window", lambda c, x: x & (c.columns >= c.kv_len - _held(c)),
                 lambda c: c.past_key is not None), features=("cache", "window")),
    Defect("present-cut-to-window",
           "present_key and present_value hold the keys of the window only: they hold every slot.",
           ("CACHE-2",), output(lambda c, x: x[..., x.shape[-2] - _held(c) :, :], *PRESENT),
           features=("cache", "window"), detail="in order",
           variants={"in the order of the ring": output(_turned, *PRESENT)}),
    Defect("present-new-before-past",
           "present_key and present_value hold the new ones before the past, which the attention does not.",
           ("CACHE-2",), output(_new_in_front, *PRESENT), features=("cache",), detail="both",
           variants={f"{name} alone": output(_new_in_front, name) for name in PRESENT}),
    Defect("present-reversed", "present_key and present_value come in reverse order.",
           ("CACHE-2",), output(lambda c, x: x[..., ::-1, :], *PRESENT), features=("cache",), detail="both",
           variants={f"{name} alone": output(lambda c, x: x[..., ::-1, :], name) for name in PRESENT}),
    Defect("layer-present-without-value-bias", "present_value of the layer lacks b_v.", ("CACHE-2", "PROJ-2"),
           after("finish",
                 lambda c, o: {**o,
                               "present_value": R.join(c, R.project_key(c),
                                   project(c, c.value, c.w_v, None))[1].astype(c.dtype)},
                 lambda c: c.layer and c.past_key is not None), features=("cache",)),
)  # fmt: skip
