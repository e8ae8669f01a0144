"""What the operands of a call hold, block by block, in whole numbers of any array library."""

import math
from typing import Any

import numpy as np

from conformance.exploring.counter import key as stream_key
from conformance.exploring.large.asked import apart, asked, member_of, word_of
from conformance.exploring.large.call import LOUD, Large
from conformance.exploring.large.edges import few_rows
from conformance.exploring.large.making import Maker
from conformance.exploring.large.mixing import mixed, salt, shifted
from conformance.vectors.case import Array

LOUDNESS = 16
"""A query is so many times the word that it asks for."""
PLACES = 5
"""Digits of base 16 that an address has for each of key, head and entry."""
FIELDS = 1 + 3 * PLACES
"""A one for the mass, then the digits: one column each, and over again."""
TOP = 3
"""The highest logit of counted keys; the lowest is zero."""
CLASSES = 16
SHIFTS = (0, 4, 8, 12)
"""Keys are counted by so many bits of their place, in 16 columns for each."""


def operands(call: Large, make: Maker) -> dict[str, Any]:
    """Query, key, value and, for gradients, grad_output, as [rows, width] arrays of the target's library."""
    rows = call.batch * call.heads * call.q_len
    keys = call.batch * call.groups * call.kv_len
    found = {
        "query": make.filled(rows, call.d_k, lambda *part: query(call, make, *part)),
        "key": make.filled(keys, call.d_k, lambda *part: key(call, make, *part)),
        "value": make.filled(keys, call.d_v, lambda *part: value(call, make, *part)),
    }
    if call.gradients:
        found["grad_output"] = make.filled(rows, call.d_v, lambda *part: grad_output(call, make, *part))
    return found


def query(call: Large, make: Maker, start: int, stop: int) -> Any:
    """Rows of the query, which are counted through entries, heads and queries."""
    flat = make.count(start, stop)
    if call.family == "sampled":
        return make.parted(scattered(call, make, "query", flat, call.d_k) * call.levels, 32)
    if call.family == "counts":
        words = _salted(call, "query", flat)
        top = round(math.sqrt(call.d_k))
        columns = [flat * 0 + top, *((mixed(words ^ n) & 1) * 2 - 1 for n in range(1, call.d_k))]
        return make.floating(make.stacked(columns))
    number = make.taken(word_of(call, asked(call, np.arange(start, stop))).astype(np.int32))
    rest, head = flat // call.q_len // call.heads, flat // call.q_len % call.heads
    signs = _signs(call, make, rest * call.groups + head // call.group, number)
    signs[0] = signs[0] * 0  # there the keys of a word differ
    return make.floating(make.stacked(signs) * LOUDNESS)


def key(call: Large, make: Maker, start: int, stop: int) -> Any:
    """Rows of the key, which are counted through entries, key heads and keys."""
    flat = make.count(start, stop)
    if call.family == "sampled":
        return make.parted(scattered(call, make, "key", flat, call.d_k), 32)
    owner, slot = flat // call.kv_len, flat % call.kv_len
    if call.family == "counts":
        level = level_of(call, owner % call.groups, slot)
        return make.floating(make.stacked([level, *(flat * 0 for _ in range(1, call.d_k))]))
    signs = _signs(call, make, owner, word_of(call, slot))
    signs[0] = 1 - 2 * (member_of(call, slot) % 2)
    return make.floating(make.stacked(signs))


def value(call: Large, make: Maker, start: int, stop: int) -> Any:
    """Rows of the value, counted as those of the key."""
    flat = make.count(start, stop)
    if call.family == "sampled":
        return make.parted(scattered(call, make, "value", flat, call.d_v), 32)
    owner, slot = flat // call.kv_len, flat % call.kv_len
    if call.family == "counts":
        return make.floating(make.stacked([_same(_class(slot, n), c) for n, c in _classes(call.d_v)]))
    columns = fields(call, slot, owner % call.groups, owner // call.groups, member_of(call, slot))
    return make.floating(make.stacked(columns))


def grad_output(call: Large, make: Maker, start: int, stop: int) -> Any:
    """Rows of the cotangent: a few ones of either sign, so that every product is exact.

    One column more is there in every row: that of the lowest digit in which the two keys of a word differ, so that
    both have a gradient.
    """
    flat = make.count(start, stop)
    if call.family == "sampled":
        found = scattered(call, make, "grad_output", flat, call.d_v)
        if call.few:
            row, there = flat % call.q_len, flat * 0
            for some in few_rows(call):
                there = there + _same(row, some)
            found = found * there[:, None]
        return make.parted(found, 32)
    words = _salted(call, "grad_output", flat)
    columns, distance = [], apart(call)
    telling = 1 + next(n for n in range(PLACES) if distance >> 4 * n & 15)
    for column in range(call.d_v):
        there = _same(words & (FIELDS - 1), column % FIELDS)
        columns.append(
            there * (1 - 2 * (shifted(words, 4 + column // FIELDS % 24) & 1)) + int(column == telling)
        )
    return make.floating(make.stacked(columns))


def fields(call: Large, slot: Any, head: Any, entry: Any, member: Any) -> list[Any]:
    """The columns of the values: the key's own address, and of 32 equal keys which one it is."""
    address = slot if call.members < LOUD else word_of(call, slot)
    one = slot * 0 + 1
    digits = [one, *(shifted(x, 4 * n) & 15 for x in (address, head, entry) for n in range(PLACES))]
    known = [_same(member, n) for n in range(call.members)] if call.members == LOUD else []
    return [*known, *(digits[n % FIELDS] for n in range(call.d_v - len(known)))]


def level_of(call: Large, head: Any, slot: Any) -> Any:
    """The logit of a counted key: it rises along the keys, and falls in every second head."""
    if call.levels == 1:
        return slot * 0
    step = slot // (-(-call.kv_len // (TOP + 1)))
    falls = head % 2
    return step * (1 - falls) + (TOP - step) * falls


def _classes(width: int) -> list[tuple[int, int]]:
    """Which bits of its place a column counts a key by, and which it wants."""
    return [(SHIFTS[c // CLASSES % len(SHIFTS)], c % CLASSES) for c in range(width)]


def _class(slot: Any, shift: int) -> Any:
    return shifted(slot, shift) & (CLASSES - 1)


def counted(call: Large, slot: Array) -> Array:
    """The values of counted keys in NumPy, [keys, d_v]."""
    return np.stack([_same(_class(slot, n), c) for n, c in _classes(call.d_v)], axis=-1)


def _same(one: Any, other: Any) -> Any:
    """One where two whole numbers are the same, zero elsewhere, by whole numbers alone."""
    apart = one ^ other
    return 1 - (((apart | -apart) >> 31) & 1)


def _salted(call: Large, name: str, flat: Any) -> Any:
    return mixed(flat ^ salt(stream_key("large", name, call.stream)))


def _signs(call: Large, make: Maker, owner: Any, number: Any) -> list[Any]:
    """The word of each key or query as columns of ones and minus ones; no two words of a head are the same."""
    # of even streams all heads and entries have the same words, so that a wrong one can be read as well
    first = mixed(_salted(call, "words", owner * (call.stream % 2)) ^ number)
    columns: list[Any] = []
    while len(columns) < call.d_k:
        bits = mixed(first ^ salt(len(columns)))
        columns += [1 - 2 * ((bits >> n) & 1) for n in range(min(32, call.d_k - len(columns)))]
    return columns


def scattered(call: Large, make: Maker, name: str, flat: Any, width: int) -> Any:
    """About normal whole numbers, whose 32nd parts have a variance of about one; of 7 bits, so exact everywhere."""
    first = _salted(call, name, flat)
    columns: list[Any] = []
    for column in range(width):
        bits = mixed(first ^ salt(column, 1))
        parts = [bits & 63, *(shifted(bits, 6 * n) & 63 for n in (1, 2, 3))]
        columns.append(parts[0] + parts[1] + parts[2] + parts[3] - 126)
    return make.stacked(columns)
