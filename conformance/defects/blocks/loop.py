"""A softmax over blocks of keys, by a running maximum or in parts that are merged; arguments say what is wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.defects.blocks.edges import Edges, ends
from conformance.defects.call import Call
from conformance.defects.defect import Change
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import column
from conformance.vectors.case import Array

Factor = Callable[[Array, Array, Array], Any]
"""The maximum before, the one now, that of the block alone -> what multiplies what is held."""
Blocks = Callable[[Array, int], Iterator[Array]]
"""Where blocks begin, number of keys -> the keys of each block that is visited."""


def kept(before: Array, now: Array, own: Array) -> Any:
    """As it should be."""
    return np.exp(before - now)


def never(before: Array, now: Array, own: Array) -> Any:
    """No rescaling."""
    return before.dtype.type(1)


def every(begins: Array, length: int) -> Iterator[Array]:
    """Each block."""
    for begin, end in zip(begins, ends(begins, length), strict=True):
        yield np.arange(begin, end)


def loop(
    edges: Edges,
    output: Factor = kept,
    total: Factor = kept,
    base: Callable[[Array, Array], Array] = lambda now, own: now,
    visited: Blocks = every,
    late: tuple[bool, bool] = (False, False),
    first: float = 1.0,
    forgets: bool = False,
    divided: bool = False,
    sink: Callable[[Call, Array, Array, int], Any] | None = None,
    sink_first: bool = False,
) -> Change:
    """An online softmax; the output is held as exponentials [..., H, q_len, kv_len], which the values follow.

    Args:
        edges: the blocks.
        output: what rescales the output.
        total: what rescales the denominator.
        base: what is subtracted in a block, of the running maximum and that of the block.
        visited: the keys that are visited.
        late: whether output and denominator are rescaled after the block is added to them, and with it.
        first: what multiplies the output in the first block that shows anything.
        forgets: whether the maximum is that of the last block.
        divided: whether each block is divided by the denominator so far.
        sink: another denominator at the end: c, total, maximum, number of blocks -> total.
        sink_first: whether the loop begins with the sink for a maximum, and one for a denominator.
    """

    def softmax(s: Any, c: Call, logits: Array, visible: Array) -> Any:
        hidden = np.where(visible, logits, c.wide(-np.inf))
        raised = np.zeros_like(hidden)
        top = np.full((*hidden.shape[:-1], 1), c.wide(-np.inf))
        summed = np.zeros_like(top)
        begun = sink_first and c.sinks is not None
        if begun:
            top, summed = np.broadcast_to(column(c, c.sinks), top.shape), np.ones_like(top)
        blocks = list(visited(edges(c.kv_len), c.kv_len))
        for keys in blocks:
            own = hidden[..., keys].max(axis=-1, keepdims=True, initial=-np.inf)
            now = own if forgets else np.maximum(top, own)
            before, safe, alone = np.where(np.isneginf(top), now, top), _safe(now), _safe(own)
            before = _safe(before)
            block = np.exp(hidden[..., keys] - _safe(base(now, own)))
            by, too = output(before, safe, alone), total(before, safe, alone)
            by = by * np.where(np.isneginf(top), c.wide(0 if forgets else first), c.wide(1))
            too = too * np.where(np.isneginf(top) & forgets, c.wide(0), c.wide(1))
            added = block.sum(axis=-1, keepdims=True)
            summed = (summed + added) * too if late[1] else summed * too + added
            if divided:
                block = block / np.where(summed == 0, 1, summed)
            raised = raised if late[0] else raised * by
            raised[..., keys] += block
            raised = raised * by if late[0] else raised
            top = now
        raised = raised * summed if divided else raised
        final = top if c.sinks is None else np.maximum(top, column(c, c.sinks))
        final = _safe(final)
        factor = np.exp(np.where(np.isneginf(top), c.wide(-np.inf), top - final))
        raised, summed = raised * factor, summed * factor
        if c.sinks is not None and not begun:
            summed = summed + np.exp(column(c, c.sinks) - final)
        if sink is not None:
            summed = sink(c, summed, final, len(blocks))
        weights = R.normalise(c, raised, summed, visible)
        if visited is not every:  # a row of which no visible key was visited
            weights = np.where(summed == 0, c.wide(0), weights)
        found = R.log(c, summed, final, visible)
        if c.sinks is None:  # a row that sees nothing but -inf is no number
            found = np.where((visible.any(axis=-1, keepdims=True) & np.isneginf(top))[..., 0], np.nan, found)
        return weights, found.astype(c.wide)

    return {"softmax": softmax}


def _safe(x: Array) -> Array:
    safe: Array = np.where(np.isneginf(x), x.dtype.type(0), x)
    return safe


Share = Callable[[Array, Array, Array], Any]
"""Maxima, denominators and numbers of keys of the parts, [..., parts] -> the share of each."""


def largest(maxima: Array) -> Array:
    """The largest maximum of all parts; 0 where there is none."""
    return _safe(maxima.max(axis=-1, keepdims=True))


def fair(maxima: Array, totals: Array, counts: Array) -> Any:
    """As it should be."""
    held = totals * np.exp(maxima - largest(maxima))
    return held / held.sum(axis=-1, keepdims=True)


def merged_lse(maxima: Array, totals: Array) -> Any:
    """As it should be; [...]."""
    top = largest(maxima)
    return (np.log((totals * np.exp(maxima - top)).sum(axis=-1, keepdims=True)) + top)[..., 0]


def split(
    edges: Edges, share: Share = fair, lse: Callable[[Array, Array], Any] = merged_lse, empty: Any = 0.0
) -> Change:
    """Parts that are attended apart and merged: `share` says by which weight, `lse` what is returned.

    `empty` is what a hidden exponential is in a part of which nothing is visible.
    """

    def softmax(s: Any, c: Call, logits: Array, visible: Array) -> Any:
        hidden = np.where(visible, logits, c.wide(-np.inf))
        blocks = list(every(edges(c.kv_len), c.kv_len))
        maxima = np.concatenate(
            [hidden[..., keys].max(axis=-1, keepdims=True, initial=-np.inf) for keys in blocks], axis=-1
        )
        raised = [
            np.where(
                np.isneginf(top := maxima[..., [n]]), c.wide(empty), np.exp(hidden[..., keys] - _safe(top))
            )
            for n, keys in enumerate(blocks)
        ]
        totals = np.stack([block.sum(axis=-1) for block in raised], axis=-1)
        counts: Array = np.array([len(keys) for keys in blocks], dtype=c.wide)
        shares = np.broadcast_to(share(maxima, totals, counts), maxima.shape)
        found = lse(maxima, totals)
        parts = [
            block
            / np.where(totals[..., [n]] == 0, 1, totals[..., [n]])
            * np.where(totals[..., [n]] == 0, 0, shares[..., [n]])
            for n, block in enumerate(raised)
        ]
        weights = np.concatenate(parts, axis=-1)
        some: Array = np.asarray(visible.any(axis=-1, keepdims=True))
        if c.sinks is not None:
            weights = weights / (1 + np.exp(column(c, c.sinks) - _safe(found)[..., None]))
            found = np.logaddexp(found, column(c, c.sinks)[..., 0])
        weights = np.where(some, weights, c.wide(0)).astype(c.wide)
        if c.sinks is None:  # a row that sees nothing but -inf is no number, as it is without parts
            lost = visible & np.isneginf(maxima).all(axis=-1, keepdims=True)
            weights = np.where(lost, c.wide(np.nan), weights)
            found = np.where(lost.any(axis=-1), c.wide(np.nan), found)
        alone = c.wide(-np.inf) if c.sinks is None else column(c, c.sinks)[..., 0]  # MASK-16
        return weights, np.where(some[..., 0], found, alone).astype(c.wide)

    return {"softmax": softmax}
