"""Which rows of a call are judged under the ordinary bound: the edges of every axis and some between.

The process of a target takes these rows, and what judges is closed to it, so nothing here imports that.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.exploring.counter import Dice
from conformance.exploring.large.call import Large
from conformance.exploring.large.edges import BACKWARD, ROWS, edges, few_rows
from conformance.exploring.large.seen import TILES, span
from conformance.exploring.large.told import Pieces
from conformance.running.protocol import encode_array

PAIRS = 1 << 20
"""Pairs of a query and a key that are judged, in all."""
PLACES = 6
"""Heads of entries of which rows are judged."""
NUMBERS = 1 << 25
"""Numbers of the keys and values of these, in all; of gradients, whose roundings are drawn many times, fewer."""
BACKWARD_NUMBERS = 1 << 21
PRODUCTS = 1 << 30
"""Products of the projections of a layer's keys, which are formed once for all rows of an entry."""
KEYS = 8
MOST_KEYS = 12
"""Parts of a call on which the gradients of keys rest, each of which takes a bound of its own."""
OF_KEYS = "k"
"""What the names of samples of keys begin with."""
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
    entries = edges(dice, call.batch, EDGES, PLACES)
    heads = edges(dice, call.heads, EDGES, PLACES)
    count = min(PLACES, max(call.batch, call.heads), call.batch * call.heads, every, most)
    if call.layer:
        count, heads = min(count, call.batch), (0,)
    found = []
    for n in range(count):
        rows = edges(
            dice, call.q_len, (n + k for n in TILES for k in (-1, 0)), min(ROWS, max(every // count, 1))
        )
        rows = tuple(few_rows(call)[: len(rows)]) if call.few else rows
        found.append(Sample(entries[n % len(entries)], heads[(n + n // len(entries)) % len(heads)], rows))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class KeySample:
    """Some keys of one key head of one entry, the rows that see any of them, and all keys that those see.

    Rows whose cotangent is zero add nothing, and are left out.
    """

    entry: int
    head: int
    slots: tuple[int, ...]
    rows: tuple[int, ...]
    keys: tuple[int, int]  # from .. to (without it)

    def pairs(self, call: Large) -> int:
        """Pairs of a query and a key on which the gradients of these keys rest."""
        return call.group * len(self.rows) * (self.keys[1] - self.keys[0])

    def beside(self, other: "KeySample") -> "KeySample":
        """The keys of both."""
        slots, rows = (
            tuple(sorted({*x, *y})) for x, y in ((self.slots, other.slots), (self.rows, other.rows))
        )
        keys = min(self.keys[0], other.keys[0]), max(self.keys[1], other.keys[1])
        return replace(self, slots=slots, rows=rows, keys=keys)


def key_samples(call: Large) -> tuple[KeySample, ...]:
    """Which keys' gradients are judged: those whose sums are short enough for a bound, with all rows that see them."""
    if not call.gradients or call.layer:
        return ()
    dice = Dice("key samples", call.stream, call.batch, call.heads)
    entries, heads = (edges(dice, size, EDGES, PLACES) for size in (call.batch, call.groups))
    found: list[KeySample] = []
    left = BACKWARD
    for n in range(min(PLACES, max(call.batch, call.groups), call.batch * call.groups)):
        place = entries[n % len(entries)], heads[(n + n // len(entries)) % len(heads)]
        slots = edges(dice, call.kv_len, (n + k for n in TILES for k in (-1, 0)), KEYS)
        slots += tuple(slot for k in (2, 7, 12) if (slot := call.kv_len - k) > 0 and slot not in slots)
        of_place: list[KeySample] = []
        for sample in (_seen(call, *place, slot) for slot in slots):
            last = of_place[-1].beside(sample) if of_place else sample
            more = last.pairs(call) - (of_place[-1].pairs(call) if of_place else 0)
            if of_place and more <= sample.pairs(call) and _fits(call, last) and more <= left:
                of_place[-1] = last
                left -= more
            elif (
                _fits(call, sample) and sample.pairs(call) <= left and len(found) + len(of_place) < MOST_KEYS
            ):
                of_place.append(sample)
                left -= sample.pairs(call)
        found += of_place
    return tuple(dict.fromkeys(found))


def _fits(call: Large, sample: KeySample) -> bool:
    return (sample.keys[1] - sample.keys[0]) * (call.d_k + call.d_v) <= BACKWARD_NUMBERS


def _seen(call: Large, entry: int, head: int, slot: int) -> KeySample:
    """One key, and what its gradients rest on; of a key that no row sees one row."""
    rows = np.arange(call.q_len)
    first, end = span(call, np.full_like(rows, entry), rows)
    seen = np.flatnonzero((first <= slot) & (slot < end))
    if not len(seen):
        return KeySample(entry, head, (slot,), (0,), (slot, slot + 1))
    if call.few:
        told = np.intersect1d(seen, few_rows(call))
        seen = told if len(told) else seen[:1]
    keys = int(first[seen].min()), int(end[seen].max())
    return KeySample(entry, head, (slot,), tuple(seen.tolist()), keys)


def affordable(call: Large) -> bool:
    """Whether rows of a call can be judged in seconds."""
    if call.layer:
        return not call.gradients and _projected(call) <= PRODUCTS
    return not call.gradients or call.kv_len * (call.d_k + call.d_v) <= BACKWARD_NUMBERS


def _projected(call: Large) -> int:
    """Products of the projections of the keys of one entry."""
    return call.kv_len * call.groups**2 * (call.d_k**2 + call.d_v**2)


def taken(call: Large, answer: Pieces) -> dict[str, Any]:
    """What came for the rows that are judged, encoded."""
    found = {}
    for number, sample in enumerate(samples(call)):
        for name in ("query",) if call.gradients else ("output", *(["lse"] if call.lse else [])):
            rows = [answer.piece(name, _place(call, sample, name, row)).reshape(1, -1) for row in sample.rows]
            found[f"{number}/{name}"] = encode_array(np.concatenate(rows))
    for number, keys in enumerate(key_samples(call)):
        for name in ("key", "value"):
            rows = [
                answer.piece(name, (_one(keys.entry), _one(keys.head), _one(slot))).reshape(1, -1)
                for slot in keys.slots
            ]
            found[f"{OF_KEYS}{number}/{name}"] = encode_array(np.concatenate(rows))
    return found


def _place(call: Large, sample: Sample, name: str, row: int) -> tuple[slice, ...]:
    if call.layer:
        heads = (slice(None),) if name == "lse" else ()
        return (_one(sample.entry), *heads, _one(row))
    return _one(sample.entry), _one(sample.head), _one(row)


def _one(number: int) -> slice:
    return slice(number, number + 1)
