"""Which keys each query asks for: a word stands at one key, at two, or at 32, and a query is such a word."""

import numpy as np

from conformance.exploring.large.call import Large
from conformance.exploring.large.seen import TILES, span, unmasked, word
from conformance.vectors.case import Array

STEPS = 64
"""Keys that are looked at for one that the mask shows."""
KINDS = 8
"""Of so many queries one asks for the first key that it sees, two for the last, two at the edge of a tile."""


def words(call: Large) -> int:
    """How many words there are for the keys of a head."""
    return -(-call.kv_len // call.members)


def apart(call: Large) -> int:
    """How far apart the keys of a word stand."""
    return words(call) if call.strided else 1


def word_of(call: Large, slot: Array) -> Array:
    """The word that stands at a key."""
    return slot % words(call) if call.strided else slot // call.members


def member_of(call: Large, slot: Array) -> Array:
    """Which of the keys of its word a key is."""
    return slot // words(call) if call.strided else slot % call.members


def slots_of(call: Large, number: Array) -> Array:
    """The keys of a word, [..., members]; those that do not exist stand behind the last key."""
    members = np.arange(call.members)
    if call.strided:
        return number[..., None] + members * words(call)
    return number[..., None] * call.members + members


def place(call: Large, flat: Array) -> tuple[Array, Array, Array]:
    """Entry, head and query of rows that are counted through."""
    rest, row = np.divmod(flat, call.q_len)
    entry, head = np.divmod(rest, call.heads)
    return entry, head, row


def asked(call: Large, flat: Array) -> Array:
    """The key that each row asks for, by its place among all rows; some key where it sees none."""
    entry, head, row = place(call, flat)
    first, end = span(call, entry, row)
    any_ = word(call, "asked", flat % 2**31, head)
    count = np.maximum(end - first, 1)
    tile = np.array(TILES)[any_ // KINDS % len(TILES)]
    anywhere = first + word(call, "key", flat % 2**31, head) % count
    edge = anywhere // tile * tile - any_ // 128 % 2
    kinds = any_ % KINDS
    found = np.select([kinds == 0, kinds <= 2, kinds <= 4], [first, end - 1, edge], anywhere)
    if call.at is not None:
        found = np.full_like(found, call.at)
    found = np.clip(found, first, np.maximum(end - 1, first))
    if call.mask:
        for _ in range(STEPS):
            hidden = ~unmasked(call, entry, row, found)
            if not hidden.any():
                break
            found = np.where(hidden, np.where(found + 1 < end, found + 1, first), found)
    return np.clip(found, 0, call.kv_len - 1)
