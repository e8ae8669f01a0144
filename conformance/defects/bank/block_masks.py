"""What is visible, added or read by blocks: columns that restart, bounds that are rounded, blocks that lack a rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, online
from conformance.defects.blocks.edges import SIZES, Edges, begin_of, end_of, family, whole
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array


def _begin(c: Call, e: Edges) -> Array:
    """Where the block of each key begins."""
    return begin_of(e(c.kv_len), c.columns)


def _end(c: Call, e: Edges) -> Array:
    """Where the block of each key ends."""
    return end_of(e(c.kv_len), c.kv_len, c.columns)


def _inside(c: Call, e: Edges) -> Array:
    """The number of each key in its block."""
    return c.columns - _begin(c, e)


def _row(c: Call, e: Edges) -> Any:
    """The number of the first query of each query's block, [q_len, 1]."""
    return begin_of(e(c.q_len), np.arange(c.q_len))[:, None]


def _causal(shown: Callable[[Call, Edges, Any], Any]) -> Callable[[Edges], Change]:
    """Another rule of causality: c, blocks, place -> bool."""
    return lambda e: {"by_causal": lambda c, place: shown(c, e, place) if c.is_causal else None}


def _lengths(shown: Callable[[Call, Edges, Any], Any]) -> Callable[[Edges], Change]:
    """Another rule of lengths: c, blocks, lengths -> bool."""
    return lambda e: {
        "by_lengths": lambda c: (
            None if c.kv_lengths is None else shown(c, e, c.kv_lengths[..., None, None, None])
        )
    }


def _window(shown: Callable[[Call, Edges, Any, Any], Any]) -> Callable[[Edges], Change]:
    """Another window: c, blocks, first and last place that are visible -> bool."""

    def by_window(c: Call, e: Edges, place: Any) -> Any:
        if c.window is None:
            return None
        left, right = (10**9 if side is None else side for side in c.window)
        return shown(c, e, place - left, place + right)

    return lambda e: {"by_window": lambda c, place: by_window(c, e, place)}


def _mask(change: Callable[[Call, Edges, Array], Array]) -> Callable[[Edges], Change]:
    """Another mask: c, blocks, mask of full width -> mask."""
    return lambda e: {
        "by_mask": lambda c: None if c.mask is None else change(c, e, _wide(c, c.mask)),
    }


def _wide(c: Call, x: Array) -> Array:
    return np.broadcast_to(x, (*x.shape[:-2], c.q_len, c.kv_len))


def _bias(change: Callable[[Call, Edges, Array], Array]) -> Callable[[Edges], Change]:
    """Another bias, the same all through the call."""
    return lambda e: {
        "accept": lambda c: (
            c
            if c.attn_bias is None or c.q_len == 0 or c.kv_len == 0
            else replace(c, attn_bias=change(c, e, _wide(c, c.attn_bias)))
        )
    }


def _hidden(shown: Callable[[Call, Edges], Any]) -> Callable[[Edges], Change]:
    """Keys that are lost."""
    return lambda e: {"intersect": lambda c, rules: R.intersect(c, rules) & shown(c, e)}


def _place(place: Callable[[Call, Edges], Any]) -> Callable[[Edges], Change]:
    """Other numbers of the queries, to which the offset is added."""
    return lambda e: {"place": lambda c: R.place(c) - np.arange(c.q_len)[:, None] + place(c, e)}


def _read(which: str, index: Callable[[Call, Edges], Array]) -> Callable[[Edges], Change]:
    """Keys or values that are read at other places."""

    def join(c: Call, e: Edges, key: Array, value: Array) -> Any:
        where = index(c, e)
        joined = R.join(c, key, value)
        return tuple(
            np.take(x, where, axis=-2) if n in which else x for n, x in zip("kv", joined, strict=True)
        )

    return lambda e: {"join": lambda c, key, value: join(c, e, key, value)}


def _before(c: Call, e: Edges) -> Array:
    """Keys of the block before, for each but the first."""
    begins = e(c.kv_len)
    size = int(begins[1]) if len(begins) > 1 else 0
    return np.where(c.columns >= size, c.columns - size, c.columns)


def _rows_kept(shown: Callable[[Call, Edges], Any]) -> Callable[[Edges], Change]:
    """Queries whose heads come out as zero: c, blocks -> bool [q_len, 1]."""
    return lambda e: after("average", lambda c, x: np.where(shown(c, e), x, c.wide(0)))


def _padding(e: Edges) -> Change:
    """The last block is filled up with keys of zero."""

    def total(c: Call, raised: Array, peak: Array) -> Any:
        begins = e(max(4 * c.kv_len, 2048))
        size = int(begins[1] - begins[0])
        return R.total(c, raised, peak) + (-c.kv_len % size) * np.exp(-peak)

    return {"total": total}


def _shared_peak(e: Edges) -> Change:
    """One maximum for all rows of a block; empty rows have none."""

    def peak(c: Call, logits: Array, visible: Array) -> Any:
        rows = np.where(visible.any(axis=-1, keepdims=True), R.peak(c, logits, visible), c.wide(-np.inf))
        begins = e(c.q_len)
        if c.q_len:
            rows = np.maximum.reduceat(rows, begins, axis=-2)
            rows = np.repeat(rows, np.diff(np.append(begins, c.q_len)), axis=-2)
        return np.where(np.isneginf(rows), c.wide(0), rows)

    return {"peak": peak}


def _only_some(name: str, chosen: Callable[[Call, Edges], Array]) -> Callable[[Edges], Change]:
    """A rule that acts in some blocks of keys only, and lets all be visible in the others."""
    return lambda e: after(name, lambda c, x: x | ~chosen(c, e))


def _first(c: Call, e: Edges) -> Array:
    return np.equal(_begin(c, e), 0)


def _last(c: Call, e: Edges) -> Array:
    return np.equal(_end(c, e), c.kv_len)


def _but_the_tail(size: int) -> Callable[[int, int], bool]:
    return lambda begin, kv_len: begin + size <= kv_len


CAUSAL, OFFSET, LENGTHS, WINDOW, MASK = (
    ("is_causal",),
    ("is_causal", "q_offset"),
    ("kv_lengths",),
    ("window",),
    ("mask",),
)

RULES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Edges], Change], str], ...] = (
    ("causal-restarts-in-each-block", "Causality counts the keys anew in each block.", ("MASK-6",), CAUSAL,
     _causal(lambda c, e, p: _inside(c, e) <= p), "kv_len"),
    ("causal-block-of-diagonal-open",
     "Causality goes by whole blocks of keys: that of the diagonal is all visible.",
     ("MASK-6",), CAUSAL, _causal(lambda c, e, p: _begin(c, e) <= p), ""),
    ("causal-block-of-diagonal-lost", "Under causality the block of keys that holds the diagonal is skipped.",
     ("MASK-6",), CAUSAL, _causal(lambda c, e, p: _end(c, e) <= p + 1), ""),
    ("causal-block-of-diagonal-lost-but-first",
     "Under causality the block of keys that holds the diagonal is skipped, but for the first.", ("MASK-6",), CAUSAL,
     _causal(lambda c, e, p: (c.columns <= p) & ((_end(c, e) <= p + 1) | (_begin(c, e) == 0))), "kv_len"),
    ("causal-loop-bound-without-offset",
     "Under causality the loop over blocks of keys forgets q_offset: it ends at q_len.",
     ("MASK-6", "MASK-8"), OFFSET, _causal(lambda c, e, p: (c.columns <= p) & (_begin(c, e) < c.q_len)), "kv_len"),
    ("causal-block-skipped-without-offset",
     "Under causality blocks of keys behind the query's own number are skipped: that forgets q_offset.",
     ("MASK-6", "MASK-8"), OFFSET,
     _causal(lambda c, e, p: (c.columns <= p) & (_begin(c, e) <= np.arange(c.q_len)[:, None])), "kv_len"),
    ("causal-block-skipped-one-early", "Under causality a block of keys that begins at the query's own place is lost.",
     ("MASK-6",), CAUSAL, _causal(lambda c, e, p: (c.columns <= p) & (_begin(c, e) < p)), ""),
    ("causal-first-block-only", "Causality acts in the first block of keys only.", ("MASK-6",), CAUSAL,
     _only_some("by_causal", _first), "kv_len"),
    ("causal-last-block-only", "Causality acts in the last block of keys only.", ("MASK-6",), CAUSAL,
     _only_some("by_causal", _last), "kv_len"),
    ("causal-not-in-last-block", "Causality does not act in the last block of keys.", ("MASK-6",), CAUSAL,
     _only_some("by_causal", lambda c, e: ~_last(c, e)), ""),
    ("place-of-first-in-block", "Every query takes the place of the first of its block of queries.", ("MASK-6",), (),
     _place(_row), ""),
    ("place-restarts-in-each-block", "The places of the queries are counted anew in each block of queries.",
     ("MASK-6",), (), _place(lambda c, e: np.arange(c.q_len)[:, None] - _row(c, e)), "q_len"),
    ("window-restarts-in-each-block", "The window counts the keys anew in each block.", ("MASK-10",), WINDOW,
     _window(lambda c, e, a, b: (_inside(c, e) >= a) & (_inside(c, e) <= b)), "kv_len"),
    ("window-place-restarts-in-each-block", "The window lies around the query's number in its block of queries.",
     ("MASK-10",), WINDOW,
     lambda e: {"by_window": lambda c, place: R.by_window(c, place - _row(c, e))}, "q_len"),
    ("window-by-whole-blocks", "A block of keys that the window touches is visible as a whole.", ("MASK-10",), WINDOW,
     _window(lambda c, e, a, b: (_end(c, e) > a) & (_begin(c, e) <= b)), ""),
    ("window-left-by-whole-blocks", "The left end of the window is rounded down to a whole block of keys.",
     ("MASK-10",), WINDOW, _window(lambda c, e, a, b: (_end(c, e) > a) & (c.columns <= b)), ""),
    ("window-skips-first-block", "The block of keys in which the window begins is skipped.", ("MASK-10",), WINDOW,
     _window(lambda c, e, a, b: (_begin(c, e) >= a) & (c.columns <= b)), "kv_len"),
    ("window-skips-last-block", "The block of keys in which the window ends is skipped.", ("MASK-10",), WINDOW,
     _window(lambda c, e, a, b: (c.columns >= a) & (_end(c, e) <= b + 1)), ""),
    ("window-first-block-only", "The window acts in the first block of keys only.", ("MASK-10",), WINDOW,
     _only_some("by_window", _first), "kv_len"),
    ("window-last-block-only", "The window acts in the last block of keys only.", ("MASK-10",), WINDOW,
     _only_some("by_window", _last), "kv_len"),
    ("lengths-restart-in-each-block", "kv_lengths count the keys anew in each block.", ("MASK-12",), LENGTHS,
     _lengths(lambda c, e, n: _inside(c, e) < n), "kv_len"),
    ("lengths-rounded-up-to-block", "A length is rounded up to a whole block of keys.", ("MASK-12",), LENGTHS,
     _lengths(lambda c, e, n: _begin(c, e) < n), ""),
    ("lengths-rounded-down-to-block", "A length is rounded down to a whole block of keys.", ("MASK-12",), LENGTHS,
     _lengths(lambda c, e, n: _end(c, e) <= n), ""),
    ("lengths-first-block-only", "kv_lengths act in the first block of keys only.", ("MASK-12",), LENGTHS,
     _only_some("by_lengths", _first), "kv_len"),
    ("lengths-last-block-only", "kv_lengths act in the last block of keys only.", ("MASK-12",), LENGTHS,
     _only_some("by_lengths", _last), "kv_len"),
    ("mask-of-first-block", "Every block of keys reads the mask of the first block.", ("MASK-1",), MASK,
     _mask(lambda c, e, m: np.take(m, _inside(c, e), axis=-1)), "kv_len"),
    ("mask-first-block-only", "The mask acts in the first block of keys only.", ("MASK-1",), MASK,
     _mask(lambda c, e, m: m | ~_first(c, e)), "kv_len"),
    ("mask-last-block-only", "The mask acts in the last block of keys only.", ("MASK-1",), MASK,
     _mask(lambda c, e, m: m | ~_last(c, e)), "kv_len"),
    ("mask-not-in-last-block", "The mask does not act in the last block of keys.", ("MASK-1",), MASK,
     _mask(lambda c, e, m: m | _last(c, e)), "kv_len"),
    ("mask-by-whole-blocks",
     "A block of keys of which the mask shows one is visible to that query as a whole.", ("MASK-1",), MASK,
     _mask(lambda c, e, m: np.repeat(np.logical_or.reduceat(m, e(c.kv_len), axis=-1),
                   np.diff(np.append(e(c.kv_len), c.kv_len)), axis=-1) if c.kv_len else m), ""),
    ("mask-of-first-block-of-queries", "Every block of queries reads the mask of the first block.", ("MASK-1",), MASK,
     _mask(lambda c, e, m: np.take(m, np.arange(c.q_len) - _row(c, e)[:, 0], axis=-2)), "q_len"),
    ("bias-of-first-block", "Every block of keys adds the bias of the first block.", ("ATT-7",), ("attn_bias",),
     _bias(lambda c, e, b: np.take(b, _inside(c, e), axis=-1)), "kv_len"),
    ("bias-first-block-only", "The bias is added in the first block of keys only.", ("ATT-7",), ("attn_bias",),
     _bias(lambda c, e, b: np.where(_first(c, e), b, b.dtype.type(0))), "kv_len"),
    ("bias-last-block-only", "The bias is added in the last block of keys only.", ("ATT-7",), ("attn_bias",),
     _bias(lambda c, e, b: np.where(_last(c, e), b, b.dtype.type(0))), "kv_len"),
    ("bias-of-first-block-of-queries", "Every block of queries adds the bias of the first block.", ("ATT-7",),
     ("attn_bias",), _bias(lambda c, e, b: np.take(b, np.arange(c.q_len) - _row(c, e)[:, 0], axis=-2)), "q_len"),
    ("tail-of-keys-lost", "Keys behind the last full block are lost, and all of them if there is no full block.",
     ("ATT-1",), (), _hidden(lambda c, e: c.columns < whole(e, c.kv_len)), ""),
    ("tail-beyond-first-block-lost", "With more keys than one block, those behind the last full block are lost.",
     ("ATT-1",), (), _hidden(lambda c, e: c.columns < (whole(e, c.kv_len) or c.kv_len)), "kv_len"),
    ("keys-read-from-first-block", "Every block of keys reads the keys of the first block.", ("ATT-1",), (),
     _read("k", _inside), "kv_len"),
    ("values-read-from-first-block", "Every block of keys reads the values of the first block.", ("ATT-1",), (),
     _read("v", _inside), "kv_len"),
    ("blocks-read-from-first", "Every block reads the keys and values of the first block.", ("ATT-1",), (),
     _read("kv", _inside), "kv_len"),
    ("keys-one-block-late", "Every block but the first reads the keys of the block before.", ("ATT-1",), (),
     _read("k", _before), "kv_len"),
    ("values-one-block-late", "Every block but the first reads the values of the block before.", ("ATT-1",), (),
     _read("v", _before), "kv_len"),
    ("query-tail-lost", "With more queries than one block, those behind the last full block come out as zero.",
     ("ATT-1",), (), _rows_kept(lambda c, e: (np.arange(c.q_len) < (whole(e, c.q_len) or c.q_len))[:, None]), "q_len"),
    ("query-tail-lost-always", "Queries behind the last full block come out as zero, all of them if none is full.",
     ("ATT-1",), (), _rows_kept(lambda c, e: (np.arange(c.q_len) < whole(e, c.q_len))[:, None]), ""),
    ("maximum-of-block-of-queries", "The maximum that is subtracted is that of a block of queries, not of the row.",
     ("ATT-2",), (), _shared_peak, "q_len"),
    ("query-first-block-only", "Queries beyond the first block come out as zero.", ("ATT-1",), (),
     _rows_kept(lambda c, e: _row(c, e) == 0), "q_len"),
    ("query-block-reads-first", "Every block of queries reads the queries of the first block.", ("ATT-1",), (),
     lambda e: after("project_query", lambda c, x: np.take(x, np.arange(c.q_len) - _row(c, e)[:, 0], axis=-2)),
     "q_len"),
    ("key-padding-counted", "Keys of zero that fill up the last block are counted in the denominator.", ("ATT-1",), (),
     _padding, ""),
)  # fmt: skip

DEFECTS = (
    *(Defect(name, sentence, violates, features=features,
             **family(make, at=4 if reach == "q_len" else 16, reach=reach))
      for name, sentence, violates, features, make, reach in RULES),
    Defect("online-tail-not-rescaled",
           "Your online softmax does not rescale before the last, incomplete block.", ("ATT-2",),
           **varied({f"in blocks of {n}": online(n, rescales=_but_the_tail(n)) for n in SIZES},
                    "in blocks of 16")),
    Defect("online-hidden-first-block-nan",
           "Your online softmax is NaN where the first block has no visible key.", ("ATT-2", "MASK-4"),
           origin="pytorch/pytorch#127055",
           **varied({f"in blocks of {n}": online(n, guarded=False) for n in SIZES}, "in blocks of 64")),
)  # fmt: skip
