"""What each row of a call is to give, exactly: no oracle, and no tolerance but for roundings of the answer."""

from dataclasses import dataclass

import numpy as np

from conformance.exploring.large.asked import asked, place, slots_of, word_of
from conformance.exploring.large.call import LOUD, Large
from conformance.exploring.large.contents import TOP, counted, fields, level_of
from conformance.exploring.large.making import spans
from conformance.exploring.large.seen import shown, sinks, span, unmasked
from conformance.names import REDUCED_POLICIES
from conformance.vectors.case import Array

ROUNDED = {"float64": 2.0**-20, "float32": 2.0**-9, "float16": 2.0**-7, "bfloat16": 2.0**-6}
"""What a right program may be off by, of its result: far more than it is, far less than one key of 32."""
COUNTED = {"float64": 2.0**-20, "float32": 2.0**-14, "float16": 2.0**-8, "bfloat16": 2.0**-6}
"""The same where keys are counted, of which each may add an error of its own."""
EACH = 2.0**-27
REDUCED = 2.0**-6
NEAR_ZERO = 1 / 16
"""The same where the result is zero, as part of that."""


@dataclass(frozen=True)
class Wanted:
    """Some rows: what they are to give, and which keys they ask for."""

    output: Array  # [rows, d_v]
    slot: Array  # [rows], the key that is asked for
    slots: Array  # [rows, members], every key of its word
    seen: Array  # [rows, members], bool


def rounded(call: Large, policy: str) -> float:
    """What a result may be off by, relative to it."""
    counts = call.family == "counts"
    found = COUNTED[call.dtype] if counts else ROUNDED[call.dtype]
    if counts and call.dtype != "float64":
        # a weight of one in so many is subnormal in float16
        found += (2.0**-24 if call.dtype == "float16" else EACH) * call.kv_len
    return max(found, REDUCED) if policy in REDUCED_POLICIES else found


def tolerance(call: Large, policy: str, output: Array) -> Array:
    """How far each number may be off."""
    part = rounded(call, policy)
    found: Array = part * np.abs(output) + part * (0.0 if call.family == "counts" else NEAR_ZERO)
    return found + 2.0**-30


def capped(call: Large, logits: Array) -> Array:
    """Logits behind the softcap."""
    return logits if call.softcap is None else call.softcap * np.tanh(logits / call.softcap)


def wanted(call: Large, flat: Array) -> Wanted:
    """What rows are to give that ask for a word; `flat` counts through entries, heads and queries."""
    entry, head, row = place(call, flat)
    slot = asked(call, flat)
    slots = slots_of(call, word_of(call, slot))
    seen: Array = shown(call, entry[:, None], row[:, None], slots) & (slots < call.kv_len)
    count = np.maximum(seen.sum(axis=1), 1)
    key_head = head // call.group
    output = np.zeros((len(flat), call.d_v))
    for member in range(call.members):
        if call.members == LOUD:
            output[:, member] = seen[:, member] / count
            continue
        columns = fields(call, slots[:, member], key_head, entry, np.zeros_like(entry))
        output += np.stack(columns, axis=-1) * (seen[:, member] / count)[:, None]
    if call.members == LOUD:
        columns = fields(call, slot, key_head, entry, np.zeros_like(entry))
        rest = np.stack(columns[LOUD:], axis=-1)
        output[:, LOUD:] = rest * seen.any(axis=1, keepdims=True)
    return Wanted(output, slot, slots, seen)


class Counts:
    """What rows give that weigh keys by their levels alone, by sums over all keys before."""

    def __init__(self, call: Large) -> None:
        self._call = call
        self._top = round(call.d_k**0.5) * call.multiplier
        self._sums: dict[tuple[int, int], tuple[Array, Array]] = {}

    def wanted(self, flat: Array) -> Array:
        """[rows, d_v]."""
        c = self._call
        entry, head, row = place(c, flat)
        first, end = span(c, entry, row)
        output = np.zeros((len(flat), c.d_v))
        kinds = (head // c.group) % 2, entry if c.mask == "k" else entry * 0
        for kind in sorted(set(zip(*(x.tolist() for x in kinds), strict=True))):
            chosen = (kinds[0] == kind[0]) & (kinds[1] == kind[1])
            if c.mask == "q":
                output[chosen] = self._by_row(kind[0], first[chosen], end[chosen], row[chosen], head[chosen])
                continue
            if kind not in self._sums and c.mask:
                self._sums.clear()
            weights, values = self._sums.setdefault(kind, self._summed(*kind))
            total = weights[end[chosen]] - weights[first[chosen]]
            some = (end > first)[chosen]
            part = values[np.maximum(end, first)[chosen]] - values[first[chosen]]
            there = some & (total > 0)
            total = np.where(there, total + self._sinks(head[chosen]), 1)
            output[chosen] = np.where(there, 1 / total, 0)[:, None] * part
        return output

    def _weights(self, head: int) -> Array:
        slot = np.arange(self._call.kv_len, dtype=np.int32)
        level = level_of(self._call, np.full_like(slot, head), slot)
        logits = capped(self._call, level * self._top)
        found: Array = np.exp(logits - capped(self._call, np.array(TOP * self._top)))
        return found

    def _sinks(self, head: Array) -> Array | float:
        """The weights of the sinks of heads."""
        if not self._call.sinks:
            return 0.0
        return np.exp(sinks(self._call)[head] - capped(self._call, np.array(TOP * self._top)))

    def _summed(self, head: int, entry: int) -> tuple[Array, Array]:
        """The weights of all keys before each, and the same times the values."""
        c = self._call
        slot = np.arange(c.kv_len, dtype=np.int32)
        weights = self._weights(head) * unmasked(c, np.array([entry]), np.zeros(1, np.int64), slot)
        values = weights[:, None] * counted(c, slot)
        return tuple(  # type: ignore[return-value]
            np.concatenate([np.zeros((1, *x.shape[1:])), np.cumsum(x, axis=0)]) for x in (weights, values)
        )

    def _by_row(self, kind: int, first: Array, end: Array, row: Array, head: Array) -> Array:
        c = self._call
        slot = np.arange(c.kv_len, dtype=np.int32)
        weights, values = self._weights(kind), counted(c, slot)
        sunk = np.broadcast_to(self._sinks(head), row.shape)[:, None]
        found = np.zeros((len(row), c.d_v))
        for start, stop in spans(len(row), max((1 << 22) // c.kv_len, 1)):
            rows = slice(start, stop)
            seen = (slot >= first[rows, None]) & (slot < end[rows, None])
            seen = seen & unmasked(c, np.zeros(1, np.int64), row[rows, None], slot)
            total = (seen * weights).sum(axis=1, keepdims=True)
            found[rows] = (seen * weights) @ values / np.where(total > 0, total + sunk[rows], 1)
        return found
