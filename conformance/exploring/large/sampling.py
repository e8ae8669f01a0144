"""Which rows of a call are judged under the ordinary bound: the edges of every axis and some between.

The process of a target takes these rows, and what judges is closed to it, so nothing here imports that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.exploring.counter import Dice
from conformance.exploring.large.call import Large
from conformance.exploring.large.judged import Pieces
from conformance.exploring.large.seen import TILES
from conformance.running.protocol import encode_array

PAIRS = 1 << 20
"""Pairs of a query and a key that are judged, in all."""
BACKWARD = 1 << 16
PLACES = 6
"""Heads of entries of which rows are judged."""
NUMBERS = 1 << 25
"""Numbers of the keys and values of these, in all; of gradients, whose roundings are drawn many times, fewer."""
BACKWARD_NUMBERS = 1 << 21
PRODUCTS = 1 << 30
"""Products of the projections of a layer's keys, which are formed once for all rows of an entry."""
ROWS = 16
EDGES = (0, 255, 256, 65_535, 65_536)
"""Entries and heads on whose sides programs go wrong."""


@dataclass(frozen=True)
class Sample:
    """Some rows of one head of one entry; of a layer those of all heads."""

    entry: int
    head: int
    rows: tuple[int, ...]


def samples(call: Large) -> tuple[Sample, ...]:
    """Which rows are judged: the first, the last, both sides of edges, and others."""
    dice = Dice("samples", call.stream, call.batch, call.heads)
    pairs, numbers = (BACKWARD, BACKWARD_NUMBERS) if call.gradients else (PAIRS, NUMBERS)
    of_layer = call.heads if call.layer else 1
    every = max(pairs // (call.kv_len * of_layer), 1)
    most = max(numbers // (call.kv_len * (call.d_k + call.d_v) * of_layer), 1)
    most = max(min(most, PRODUCTS // max(_projected(call), 1)), 1) if call.layer else most
    entries = _edges(dice, call.batch, EDGES, PLACES)
    heads = _edges(dice, call.heads, EDGES, PLACES)
    count = min(PLACES, max(call.batch, call.heads), call.batch * call.heads, every, most)
    if call.layer:
        count, heads = min(count, call.batch), (0,)
    found = []
    for n in range(count):
        rows = _edges(
            dice, call.q_len, (n + k for n in TILES for k in (-1, 0)), min(ROWS, max(every // count, 1))
        )
        found.append(Sample(entries[n % len(entries)], heads[(n + n // len(entries)) % len(heads)], rows))
    return tuple(dict.fromkeys(found))


def affordable(call: Large) -> bool:
    """Whether rows of a call can be judged in seconds."""
    if call.layer:
        return not call.gradients and _projected(call) <= PRODUCTS
    return not call.gradients or call.kv_len * (call.d_k + call.d_v) <= BACKWARD_NUMBERS


def _projected(call: Large) -> int:
    """Products of the projections of the keys of one entry."""
    return call.kv_len * call.groups**2 * (call.d_k**2 + call.d_v**2)


def _edges(dice: Dice, size: int, edges: Iterable[int], most: int) -> tuple[int, ...]:
    """At most so many numbers below a size: the last, the first, edges, others."""
    some = [edge for edge in edges if edge < size]
    wanted = dict.fromkeys([size - 1, 0, *dice.order(some)[: max(most // 2, 1)]])
    while len(wanted) < min(most, size):
        wanted[dice.below(size)] = None
    return tuple(list(wanted)[:most])


def taken(call: Large, answer: Pieces) -> dict[str, Any]:
    """What came for the rows that are judged, encoded."""
    found = {}
    for number, sample in enumerate(samples(call)):
        for name in ("query",) if call.gradients else ("output", *(["lse"] if call.lse else [])):
            rows = [answer.piece(name, _place(call, sample, name, row)).reshape(1, -1) for row in sample.rows]
            found[f"{number}/{name}"] = encode_array(np.concatenate(rows))
    return found


def _place(call: Large, sample: Sample, name: str, row: int) -> tuple[slice, ...]:
    if call.layer:
        heads = (slice(None),) if name == "lse" else ()
        return (_one(sample.entry), *heads, _one(row))
    return _one(sample.entry), _one(sample.head), _one(row)


def _one(number: int) -> slice:
    return slice(number, number + 1)
