"""Loops in plain code: what is not reset, where they end, and which index they write to."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, products
from conformance.defects.blocks.edges import Edges, begin_of, family, size_of
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array

CHUNKS = (2, 3, 4, 8, 16, 32, 64)


def _carry(x: Array, axis: int, step: int, join: np.ufunc) -> Array:
    """Each entry along an axis joined with those so many steps before it, however far."""
    x = np.moveaxis(x, axis, 0).copy()
    for begin in range(step, len(x), step):
        part = x[begin : begin + step]
        part[:] = join(part, x[begin - step : begin - step + len(part)])
    return np.moveaxis(x, 0, axis)


def _step(c: Call, e: Edges) -> int:
    begins = e(c.q_len)
    return int(begins[1]) if len(begins) > 1 else max(c.q_len, 1)


def _carried(axis: int, step: Callable[[Call], int], output: bool = True, total: bool = True) -> Change:
    """What goes on where the row before ended: exponentials times values, denominators, or both.

    `axis` is that of the heads, [..., H, q_len, d_v], or of the rows; weights follow where the values are the same.
    """

    def attend(s: Steps, c: Call, query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
        logits = s.bias(c, s.cap(c, s.score(c, query, key, s.scale(c))))
        visible = visibility(s, c)
        weights, lse = s.softmax(s, c, logits, visible)
        heads = s.average(c, weights, value, visible)
        far = step(c)
        held = _carry(lse, axis + 1, far, np.logaddexp) if total else lse
        if output:
            top = _safe(lse.max(axis=axis + 1, keepdims=True, initial=-np.inf))
            before = np.exp(lse - top)[..., None]
            now = np.exp(np.where(np.isneginf(held), c.wide(np.inf), held) - top)[..., None]
            heads, weights = (_carry(x * before, axis, far, np.add) / now for x in (heads, weights))
        else:
            factor = np.exp(np.where(np.isneginf(lse), c.wide(-np.inf), lse - _safe(held)))[..., None]
            heads, weights = heads * factor, weights * factor
        return heads.astype(c.wide), weights.astype(c.wide), held.astype(c.wide)

    return {"attend": attend}


def _safe(x: Array) -> Array:
    return np.where(np.isneginf(x), x.dtype.type(0), x)


def _rows(**parts: bool) -> dict[str, Any]:
    """Between blocks of queries, or from each query to the next, as fields of a Defect."""
    found = family(lambda e: _carried(-2, lambda c: _step(c, e), **parts), at=4, reach="q_len")
    found["variants"]["from each query to the next"] = _carried(-2, lambda c: 1, **parts)
    return found


def _until_hidden(c: Call, rules: tuple[Any, ...]) -> Array:
    found: Array = np.logical_and.accumulate(R.intersect(c, rules), axis=-1)
    return found


def _until_hidden_block(e: Edges) -> Change:
    """The loop ends at the first block of which nothing is visible to the row."""

    def intersect(c: Call, rules: tuple[Any, ...]) -> Array:
        visible = R.intersect(c, rules)
        if not c.kv_len:
            return visible
        begins = e(c.kv_len)
        some = np.logical_and.accumulate(np.logical_or.reduceat(visible, begins, axis=-1), axis=-1)
        return visible & np.repeat(some, np.diff(np.append(begins, c.kv_len)), axis=-1)

    return {"intersect": intersect}


def _last_lost(axis: int) -> Change:
    """The last entry of an axis of the heads, [..., H, q_len, d_v], stays zero."""

    def lost(c: Call, x: Array) -> Array:
        if x.ndim < -axis or not x.shape[axis]:
            return x
        kept: Array = np.moveaxis(x.copy(), axis, 0)
        kept[-1] = 0
        return np.moveaxis(kept, 0, axis)

    return after("average", lost)


def _last_repeated(e: Edges) -> Change:
    """The last block is filled up with its last key, by an index that is kept within the keys."""

    def raised(c: Call, logits: Array, visible: Array, peak: Array) -> Any:
        found = R.raised(c, logits, visible, peak)
        times = np.where(c.columns == c.kv_len - 1, 1 + -c.kv_len % size_of(e, c.kv_len), 1)
        return found * times.astype(c.wide)

    return {"raised": raised}


def _features(chosen: Callable[[int, int], Any]) -> Callable[[int], Change]:
    """Products of some of the features only: d_k, size of chunks -> bool."""
    return lambda size: after("project_query", lambda c, x: x * chosen(c.d_k, size).astype(c.wide))


def _columns(size: int) -> Change:
    return after(
        "average",
        lambda c, x: np.where((np.arange(c.d_v) < c.d_v // size * size) | (c.d_v < size), x, c.wide(0)),
    )


def _chunked(make: Callable[[int], Change]) -> dict[str, Any]:
    return varied({f"in chunks of {size}": make(size) for size in CHUNKS}, "in chunks of 4")


def _written_locally(e: Edges) -> Change:
    """Each block of queries is written to the rows of the first one; the last that writes to a row stays."""

    def written(c: Call, x: Array) -> Array:
        begin = begin_of(e(c.q_len), np.arange(c.q_len))
        found = np.zeros_like(x)
        for i, start in enumerate(begin):
            found[..., i - start, :] = x[..., i, :]
        return found

    return after("average", written)


def _turned(c: Call, weights: Array, value: Array, visible: Array) -> Array:
    square = c.q_len == c.kv_len
    turned = (
        (weights.swapaxes(-1, -2), value, visible.swapaxes(-1, -2)) if square else (weights, value, visible)
    )
    heads: Array = R.average(c, *turned)
    return heads


DEFECTS = (
    Defect("state-not-reset-between-queries",
           "Maximum, denominator and output go on where the block of queries before ended: nothing is reset.",
           ("ATT-1", "ATT-2"), **_rows()),
    Defect("denominator-not-reset-between-queries",
           "The denominator goes on where that of the block of queries before ended.", ("ATT-1", "ATT-2"),
           **_rows(output=False)),
    Defect("output-not-reset-between-queries",
           "The sum of the values goes on where that of the block of queries before ended.", ("ATT-1",),
           **_rows(total=False)),
    Defect("state-not-reset-between-heads",
           "From one head to the next nothing is reset: each goes on where the last one ended.",
           ("HEAD-1", "ATT-1"), _carried(-3, lambda c: 1), detail="maximum, denominator and output",
           variants={"the denominator": _carried(-3, lambda c: 1, output=False),
                     "the output": _carried(-3, lambda c: 1, total=False)}),
    Defect("products-not-reset-between-keys",
           "The product of query and key goes on where that of the key before ended.",
           ("ATT-1",), products(lambda c, x: np.cumsum(x, axis=-1, dtype=x.dtype))),
    Defect("row-ends-at-first-hidden-key",
           "The loop over the keys ends at the first hidden one, where it should go on with the next.",
           ("MASK-1", "MASK-9"), {"intersect": _until_hidden}),
    Defect("loop-ends-at-first-hidden-block",
           "The loop over blocks of keys ends at the first of which a query sees none, where it should go on.",
           ("MASK-1", "MASK-9"), **family(_until_hidden_block, at=4, reach="")),
    Defect("last-of-an-axis-lost", "A loop ends one early, so that the last entry stays zero.",
           ("ATT-1",), _last_lost(-2), detail="the last query",
           variants={"the last head": _last_lost(-3), "the last batch entry": _last_lost(-4),
                     "the last column of the values": _last_lost(-1)}),
    Defect("average-by-transposed-weights",
           "Where there are as many queries as keys, the values are averaged by the weights transposed.",
           ("ATT-1",), {"average": _turned}),
    Defect("key-tail-filled-with-last-key",
           "The last block of keys is filled up with the last key, which counts more than once.", ("ATT-1",),
           **family(_last_repeated, reach="")),
    Defect("products-of-last-chunk-of-features",
           "Products of query and key are overwritten by each chunk of features, not summed.", ("ATT-1",),
           **_chunked(_features(lambda d, n: np.arange(d) >= (d - 1) // n * n))),
    Defect("products-of-first-chunk-of-features",
           "Only the first chunk of the features of query and key is multiplied.", ("ATT-1",),
           **_chunked(_features(lambda d, n: np.arange(d) < n))),
    Defect("tail-of-value-columns-lost", "Columns of the values behind the last full chunk come out as zero.",
           ("ATT-1", "SHAPE-3"), **_chunked(_columns)),
    Defect("output-written-to-first-block",
           "Each block of queries is written to the rows of the first one, by a number that counts within the block.",
           ("ATT-1",), **family(_written_locally, at=4, reach="q_len")),
)  # fmt: skip
