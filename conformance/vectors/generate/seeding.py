"""Drafts whose operands are seeds: sizes without bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.names import BIASES, MHA, MHA_VJP, SDPA, SDPA_VJP, WEIGHTS
from conformance.vectors.case import Array
from conformance.vectors.generate.draft import Draft
from conformance.vectors.seeded import Box, Inputs, Seed

OPERANDS = (
    *("query", "key", "value", *WEIGHTS, *BIASES, "past_key", "past_value", "sinks"),
    *("mask", "attn_bias", "grad_output"),
)
"""Each has a seed of its own, the same in every case: cases of one shape share their operands."""
STREAMS = 100
SHOWN = 208
"""Of 256 places that a mask shows."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call; of the layer where it has a width."""

    batch: tuple[int, ...] = (2,)
    heads: int = 4
    groups: int = 4
    q_len: int = 1
    kv_len: int = 1  # the past included
    d_k: int = 16
    d_v: int = 16
    past: int = 0
    width: int = 0  # d_q = d_kv = d_vv = d_out of a layer
    biases: str = "qkvo"

    @property
    def full(self) -> tuple[int, ...]:
        """The shape of a mask that says all of itself."""
        return (*self.batch, self.heads, self.q_len, self.kv_len)


def shapes(s: Sizes, backward: bool) -> dict[str, tuple[int, ...]]:
    """The shape of each operand."""
    new = s.kv_len - s.past
    found: dict[str, tuple[int, ...]]
    if s.width:
        found = {
            "query": (*s.batch, s.q_len, s.width),
            "key": (*s.batch, new, s.width),
            "value": (*s.batch, new, s.width),
            "w_q": (s.heads, s.width, s.d_k),
            "w_k": (s.groups, s.width, s.d_k),
            "w_v": (s.groups, s.width, s.d_v),
            "w_o": (s.heads, s.d_v, s.width),
        }
        own = {"q": (s.heads, s.d_k), "k": (s.groups, s.d_k), "v": (s.groups, s.d_v), "o": (s.width,)}
        found |= {f"b_{letter}": own[letter] for letter in s.biases}
        last = (*s.batch, s.q_len, s.width)
    else:
        found = {
            "query": (*s.batch, s.heads, s.q_len, s.d_k),
            "key": (*s.batch, s.groups, new, s.d_k),
            "value": (*s.batch, s.groups, new, s.d_v),
        }
        last = (*s.batch, s.heads, s.q_len, s.d_v)
    if s.past:
        found["past_key"] = (*s.batch, s.groups, s.past, s.d_k)
        found["past_value"] = (*s.batch, s.groups, s.past, s.d_v)
    return {**found, "grad_output": last} if backward else found


def seed(name: str, shape: tuple[int, ...], stream: int = 0, **given: Any) -> Seed:
    """The seed of an operand: numbers of about one, a projection's of about one over the width that comes in."""
    number = OPERANDS.index(name) + STREAMS * stream
    if name == "mask":
        return Seed(shape, number, share=given.pop("share", SHOWN), **given)
    if name in WEIGHTS:
        width = shape[1] * (shape[0] if name == "w_o" else 1)
        given.setdefault("power", round(math.log2(math.sqrt(3 / width))))
    if name in BIASES:
        given.setdefault("power", -1)
    if name == "grad_output":  # small, so that float16 holds long sums
        given.setdefault("power", -3)
    return Seed(shape, number, **given)


def box(shape: tuple[int, ...], value: float | bool, *sides: slice | int) -> Box:
    """One value over a part of an array, given as an index of its last axes."""
    whole = [*[slice(None)] * (len(shape) - len(sides)), *sides]
    ranges = [
        side.indices(size)[:2] if isinstance(side, slice) else (side % size, side % size + 1)
        for side, size in zip(whole, shape, strict=True)
    ]
    return Box(tuple(a for a, _ in ranges), tuple(max(a, b) for a, b in ranges), value)


def seeded(
    id: str,  # noqa: A002 - the word that the index and the reports use
    note: str,
    *covers: str,
    sizes: Sizes,
    backward: bool = False,
    stream: int = 0,
    seeds: Mapping[str, Seed] | None = None,
    arrays: Mapping[str, Array] | None = None,
    **given: Any,
) -> Draft:
    """A draft of a call with these sizes: every operand from a seed, those in `seeds` from their own.

    `arrays` are small operands that are stored; the rest of what is given is an option or a field of the draft.
    """
    made = {name: seed(name, shape, stream) for name, shape in shapes(sizes, backward).items()}
    made |= seeds or {}
    stored = dict(arrays or {})
    forward, gradient = (MHA, MHA_VJP) if sizes.width else (SDPA, SDPA_VJP)
    fields = {
        name: given.pop(name)
        for name in ("rows", "sampled", "only", "needs", "memory", "repeat", "dtype_of")
        if name in given
    }
    inputs = Inputs(stored, made, (*made, *stored))
    operation = gradient if backward else forward
    return Draft(id, note, covers, operation, inputs, given, seeded=made, **fields)


def spread(size: int, count: int) -> tuple[int, ...]:
    """So many rows of an axis: the last, then the first of its second half, then one in between, then the first."""
    wanted = [size - 1, size // 2, size // 4 + 1, 0]
    return tuple(sorted(set(wanted[:count]) & set(range(size))))


def whole(*numbers: int) -> Array:
    """Lengths or offsets."""
    return np.array(numbers, np.int64)
