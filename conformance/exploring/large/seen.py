"""Which keys the rows of a call may attend, in closed form: no array has an axis for queries and one for keys."""

import numpy as np

from conformance.dtypes import cast
from conformance.exploring.counter import key
from conformance.exploring.large.call import EVERY, Large
from conformance.exploring.large.mixing import mixed, salt
from conformance.vectors.case import Array

TILES = (16, 32, 64, 128, 256, 512, 1024, 4096, 65_536)
HIDDEN = 8
"""A mask hides one place in so many."""


def word(call: Large, name: str, *numbers: Array) -> Array:
    """A number of 31 bits for each place, by whole numbers of up to 32 bits that name it."""
    salted = salt(key("large", name, call.stream))
    found = np.atleast_1d(np.asarray(numbers[0]).astype(np.int32) ^ np.int32(salted))
    found = mixed(found)
    for more in numbers[1:]:
        found = mixed(found ^ np.asarray(more).astype(np.int32))
    return (found & 0x7FFFFFFF).astype(np.int64)


def lengths(call: Large) -> Array:
    """The length of each entry, [B]: whole, at the edge of a tile, beside one, or any."""
    entries = np.arange(call.batch)
    if not call.lengths:
        return np.full(call.batch, call.kv_len, np.int64)
    any_ = word(call, "length", entries)
    tile = np.array(TILES)[any_ % len(TILES)]
    edge = np.maximum(any_ // 16 % (call.kv_len // tile + 1) * tile, np.minimum(tile, call.kv_len))
    kinds = (entries + any_[0] + (call.batch == 1)) % 4
    found = np.select(
        [kinds == 0, kinds == 1, kinds == 2],
        [np.full(call.batch, call.kv_len), edge, edge + 1 - 2 * (any_ % 2)],
        any_ // 8 % call.kv_len + 1,
    )
    return np.clip(found, min(call.q_len, call.kv_len), call.kv_len).astype(np.int64)


def offsets(call: Large) -> Array:
    """The offset of each entry, [B]."""
    if call.offset == EVERY:
        return lengths(call) - call.q_len
    return np.full(call.batch, int(call.offset or 0), np.int64)


def span(call: Large, entry: Array, row: Array) -> tuple[Array, Array]:
    """The keys from .. to (without it) that causality, window and lengths show to rows."""
    place = row + offsets(call)[entry]
    first, end = np.zeros_like(place), lengths(call)[entry]
    if call.causal:
        end = np.minimum(end, place + 1)
    if call.window is not None:
        left, right = call.window
        first = first if left is None else np.maximum(first, place - left)
        end = end if right is None else np.minimum(end, place + right + 1)
    return np.clip(first, 0, call.kv_len), np.clip(end, 0, call.kv_len)


def unmasked(call: Large, entry: Array, row: Array, slot: Array) -> Array:
    """Whether the mask shows a key to a row; arrays that broadcast."""
    if not call.mask:
        return np.ones(np.broadcast_shapes(entry.shape, row.shape, slot.shape), bool)
    owner = entry if call.mask == "k" else row
    shown: Array = word(call, "mask", owner, slot) % HIDDEN != 0
    return np.broadcast_to(shown, np.broadcast_shapes(entry.shape, row.shape, slot.shape))


def shown(call: Large, entry: Array, row: Array, slot: Array) -> Array:
    """Whether a row may attend a key; arrays that broadcast."""
    first, end = span(call, entry, row)
    return (slot >= first) & (slot < end) & (slot >= 0) & unmasked(call, entry, row, slot)


def sinks(call: Large) -> Array:
    """The sink of each head, [H]: about as much as all counted keys, and far below the logit that is asked for."""
    return round(np.log(call.kv_len + 1)) + np.arange(call.heads) % 3 - 1.0


def options(call: Large) -> tuple[dict[str, Array], dict[str, object]]:
    """The options that are arrays, and those that are none."""
    c = call
    arrays: dict[str, Array] = {}
    if c.lengths:
        arrays["kv_lengths"] = lengths(c)
    if c.offset == EVERY:
        arrays["q_offset"] = offsets(c)
    if c.mask == "k":
        entries, slots = np.arange(c.batch), np.arange(c.kv_len)
        arrays["mask"] = unmasked(c, entries[:, None], np.zeros(1, np.int64), slots)[:, None, None, :]
    if c.mask == "q":
        rows, slots = np.arange(c.q_len), np.arange(c.kv_len)
        arrays["mask"] = unmasked(c, np.zeros(1, np.int64), rows[:, None], slots)
    if c.biased and "mask" in arrays:
        arrays["attn_bias"] = cast(np.where(arrays.pop("mask"), np.float32(0), -np.float32(np.inf)), c.dtype)
    if c.sinks:
        arrays["sinks"] = cast(sinks(c), c.dtype)
    found: dict[str, object] = {}
    if c.causal:
        found["is_causal"] = True
    if isinstance(c.offset, int):
        found["q_offset"] = c.offset
    if c.window is not None:
        found["window"] = c.window
    if c.scale is not None:
        found["scale"] = c.scale
    if c.softcap is not None:
        found["softcap"] = c.softcap
    if c.lse:
        found["return_lse"] = True
    return arrays, found
