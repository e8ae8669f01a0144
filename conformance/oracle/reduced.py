"""A part of a call that was judged wrong, small enough to try every known mistake on; and where it is wrong."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.judging.judge import measured
from conformance.names import MHA, MHA_VJP, SDPA
from conformance.oracle.certified import Certified
from conformance.vectors.case import Array, Case

ALIGNED, TALL = 64, 32
"""A block of queries begins at a multiple of this, as tiles do, and has so many."""
HEADED = ("query", "key", "value", "past_key", "past_value", "grad_output")
"""Operands of an attention with batch and heads in front: [..., H, length, width]."""
PLACES = ("batch entry", "head", "query row")
FEW = 4
"""Places that are named one by one."""


@dataclass(frozen=True)
class Part:
    """A call of fewer batch entries, heads or queries, and what was returned for it."""

    inputs: Mapping[str, Array]
    options: Mapping[str, Any]
    outputs: Mapping[str, Array]
    said: str  # what it is a part of, in words


def parts(found: Certified, policy: str, outputs: Mapping[str, Array]) -> Iterator[Part]:
    """The parts that hold the worst number: of one batch entry, of one key head, of a block of queries; smaller last.

    Only an attention is cut into heads and queries: gradients of key and value are sums over every query, and a
    layer mixes its heads.
    """
    case = found.case
    place = _worst(found, policy, outputs)
    if place is None or case.operation in (MHA, MHA_VJP):
        return
    batch = case.inputs["query"].shape[:-3]
    entry = place[: len(batch)]
    whole = Part(dict(case.inputs), dict(case.options), dict(outputs), "")
    one = _of_entry(case, whole, entry)
    yield one
    heads, groups = case.inputs["query"].shape[-3], case.inputs["key"].shape[-3]
    share = heads // groups
    group = place[len(batch)] // share
    narrow = _of_group(one, group, share)
    yield narrow
    if case.operation == SDPA and "past_key" not in case.inputs and "window" not in case.options:
        yield _of_block(narrow, place[-1] if place[-1] is not None else 0)


def size(part: Part) -> int:
    """Numbers of a call, and of its results."""
    return sum(x.size for x in part.inputs.values()) + sum(x.size for x in part.outputs.values())


def _worst(found: Certified, policy: str, outputs: Mapping[str, Array]) -> tuple[int, ...] | None:
    """Batch entry, head and query of the worst number of an output with heads."""
    worst: tuple[float, tuple[int, ...]] | None = None
    for m in measured(found.case, found.dtype, policy, outputs):
        if m.output in ("attn_bias", "sinks") or m.golden.hi.ndim < 3 or not m.error.size:
            continue
        bad = np.where(m.misplaced, np.inf, m.ratio)
        flat = int(bad.argmax())
        if bad.flat[flat] > 1 and (worst is None or bad.flat[flat] > worst[0]):
            index = m.place(flat)
            if m.output in ("key", "value"):  # [..., G, kv_len, d]
                share = found.case.inputs["query"].shape[-3] // found.case.inputs["key"].shape[-3]
                place = (*index[:-3], index[-3] * share, 0)
            else:
                place = index if m.output == "lse" else index[:-1]
            worst = float(bad.flat[flat]), place
    return None if worst is None else worst[1]


def _of_entry(case: Case, part: Part, entry: Sequence[int]) -> Part:
    """One batch entry, which keeps its axes."""
    rank = len(entry)

    def cut(name: str, x: Array, tail: int) -> Array:
        axes = x.ndim - tail
        for axis in range(axes):
            at = entry[rank - axes + axis] if x.shape[axis] > 1 else 0
            x = np.take(x, [at], axis=axis)
        return x

    inputs = {name: cut(name, x, _tail(name, rank, x)) for name, x in part.inputs.items()}
    outputs = {
        name: cut(name, x, 2 if name == "lse" else _tail(name, rank, x)) for name, x in part.outputs.items()
    }
    if "q_offset" in inputs and inputs["q_offset"].size == 1 and not rank:
        inputs["q_offset"] = inputs["q_offset"].reshape(())
    several = math.prod(case.inputs["query"].shape[:rank]) > 1
    return Part(inputs, part.options, outputs, f"batch entry {_index(entry)}" if several else "")


def _tail(name: str, rank: int, x: Array) -> int:
    """Axes of an array behind those of the batch."""
    if name in ("kv_lengths", "q_offset"):
        return 0
    if name.endswith("_segments"):
        return 1
    if name == "grad_lse":
        return 2
    if name == "sinks":
        return 1
    return min(3, x.ndim)


def _of_group(part: Part, group: int, share: int) -> Part:
    """One key head with its query heads."""
    first = group * share

    def cut(name: str, x: Array) -> Array:
        axis = 0 if name == "sinks" else -2 if name in ("lse", "grad_lse") else -3
        if x.ndim < -axis or name in ("kv_lengths", "q_offset", "q_segments", "kv_segments"):
            return x
        if name in ("key", "value", "past_key", "past_value", "present_key", "present_value"):
            return np.take(x, [group], axis=axis)
        return x if x.shape[axis] == 1 else np.take(x, range(first, first + share), axis=axis)

    inputs = {name: cut(name, x) for name, x in part.inputs.items()}
    outputs = {name: cut(name, x) for name, x in part.outputs.items()}
    heads = f"head {first}" if share == 1 else f"heads {first} to {first + share - 1}"
    return Part(inputs, part.options, outputs, ", ".join(filter(None, (part.said, heads))))


def _of_block(part: Part, row: int) -> Part:
    """A block of queries around a row; what goes by their places gets an offset."""
    begin = row // ALIGNED * ALIGNED
    begin += (row - begin) // TALL * TALL
    rows = range(begin, min(begin + TALL, part.inputs["query"].shape[-2]))

    def cut(name: str, x: Array) -> Array:
        axis = -1 if name in ("lse", "q_segments") else -2
        if name == "q_segments":
            return np.take(x, rows, axis=axis)
        if name not in ("query", "mask", "attn_bias", "output", "lse", "weights") or x.ndim < 2:
            return x
        return x if x.shape[axis] == 1 else np.take(x, rows, axis=axis)

    inputs = {name: cut(name, x) for name, x in part.inputs.items()}
    options = dict(part.options)
    if options.get("is_causal") or "q_offset" in inputs or "q_offset" in options:
        if "q_offset" in inputs:
            inputs["q_offset"] = inputs["q_offset"] + begin
        else:
            options["q_offset"] = int(options.get("q_offset", 0)) + begin
    outputs = {name: cut(name, x) for name, x in part.outputs.items()}
    said = f"query rows {rows[0]} to {rows[-1]}"
    return Part(inputs, options, outputs, ", ".join(filter(None, (part.said, said))))


def _index(entry: Sequence[int]) -> str:
    return ", ".join(map(str, entry))


def where_wrong(found: Certified, policy: str, outputs: Mapping[str, Array]) -> list[str]:
    """In which batch entries, heads and rows the wrong numbers are, where that is not everywhere."""
    if found.case.operation in (MHA, MHA_VJP):
        return []
    said = []
    for m in measured(found.case, found.dtype, policy, outputs):
        bad: Array = np.asarray(m.exceeds | m.misplaced)
        if m.output not in ("output", "query") or not bad.any():
            continue
        flat = bad.reshape(math.prod(bad.shape[:-3]), *bad.shape[-3:])  # [N, H, rows, d]
        held = list(m.golden.rows or range(bad.shape[-2]))
        for axis, name in enumerate(PLACES):
            wrong: Array = np.asarray(flat.any(axis=tuple(n for n in range(4) if n != axis)))
            numbers = held if axis == 2 else list(range(flat.shape[axis]))
            if not wrong.all():
                those = [n for n, is_wrong in zip(numbers, wrong.tolist(), strict=True) if is_wrong]
                said.append(_among(name, those, numbers))
    return said


def _among(name: str, wrong: Sequence[int], judged: Sequence[int]) -> str:
    """Which of some numbers are wrong."""
    what = f"{name}s" if name != "batch entry" else "batch entries"
    right = [n for n in judged if n not in set(wrong)]
    if len(wrong) > 1 and min(wrong) > max(right, default=-1):
        return f"wrong only in {what} from {min(wrong)} on"
    if len(wrong) > 1 and max(wrong) < min(right, default=0):
        return f"wrong only in {what} up to {max(wrong)}"
    if len(wrong) <= FEW:
        listed = ", ".join(map(str, wrong))
        return f"wrong only in {name if len(wrong) == 1 else what} {listed}"
    return f"wrong in {len(wrong)} of {len(judged)} judged {what}"
