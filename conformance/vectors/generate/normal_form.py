"""A call brought to one form: batch axes flattened, every mask made one visibility, projections in the open."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.names import MHA, MHA_VJP

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Limits = tuple[Array, Array]
"""W and s of one output."""


@dataclass(frozen=True)
class Problem:
    """What one call asks, restricted to the query rows that are judged. Sizes as in spec/glossary.md."""

    batch: tuple[int, ...]  # leading axes
    layer: bool
    inputs: Mapping[str, Array]  # float operands, batch axes flattened to one where they have any
    num_heads: int
    num_kv_heads: int
    q_len: int  # of the whole call
    kv_len: int  # the past included
    rows: tuple[int, ...]  # the query rows kept
    visible: Bools  # [B, H, rows, kv_len]
    bias: Array  # [B, H, rows, kv_len], zero where none is given or where it masks
    has_bias: bool
    scale: float | None
    softcap: float | None

    @property
    def size(self) -> int:
        """B, the number of batch entries."""
        return math.prod(self.batch)

    @property
    def d_k(self) -> int:
        """Width of a query and key head."""
        return int(self.inputs["w_q"].shape[2] if self.layer else self.inputs["query"].shape[-1])

    @property
    def d_v(self) -> int:
        """Width of a value head."""
        return int(self.inputs["w_v"].shape[2] if self.layer else self.inputs["value"].shape[-1])

    @property
    def group(self) -> int:
        """How many query heads share one key head."""
        return self.num_heads // self.num_kv_heads

    @property
    def multiplier(self) -> float:
        """The scale as a float64; the oracle uses the exact square root where none is given."""
        return 1.0 / math.sqrt(self.d_k) if self.scale is None else self.scale


def pose(
    operation: str,
    inputs: Mapping[str, npt.NDArray[Any]],
    options: Mapping[str, Any],
    rows: tuple[int, ...] | None,
) -> Problem:
    """The problem that a call of an operation poses."""
    layer = operation in (MHA, MHA_VJP)
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    batch = tuple(query.shape[: -2 if layer else -3])
    size = math.prod(batch)
    num_heads = inputs["w_q"].shape[0] if layer else query.shape[-3]
    num_kv_heads = inputs["w_k"].shape[0] if layer else key.shape[-3]
    q_len = query.shape[-2]
    past = inputs["past_key"].shape[-2] if "past_key" in inputs else 0
    kv_len = key.shape[-2] + past
    kept = tuple(range(q_len)) if rows is None else rows
    floats = {
        name: np.asarray(array, dtype=np.float64)
        for name, array in inputs.items()
        if array.dtype.kind == "f" and name != "attn_bias"
    }
    for name in ("query", "key", "value", "past_key", "past_value", "grad_output"):
        if name in floats:
            floats[name] = floats[name].reshape(size, *floats[name].shape[len(batch) :])
    floats["query"] = floats["query"][..., list(kept), :]
    if "grad_output" in floats:
        floats["grad_output"] = floats["grad_output"][..., list(kept), :]
    if "grad_lse" in floats:
        floats["grad_lse"] = floats["grad_lse"].reshape(size, num_heads, q_len)[..., list(kept)]
    assert value.shape[-2] == key.shape[-2]
    full = (size, num_heads, len(kept), kv_len)
    visible = _visible(inputs, options, batch, full, kept)
    bias = np.broadcast_to(0.0, full)
    if "attn_bias" in inputs:
        bias = _spread(inputs["attn_bias"], batch, full, kept).astype(np.float64)
        bias[np.isneginf(bias)] = 0.0
    return Problem(
        batch=batch,
        layer=layer,
        inputs=floats,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        rows=kept,
        visible=visible,
        bias=bias,
        has_bias="attn_bias" in inputs,
        scale=options.get("scale"),
        softcap=options.get("softcap"),
    )


def _spread(
    array: npt.NDArray[Any], batch: tuple[int, ...], full: tuple[int, ...], rows: tuple[int, ...]
) -> npt.NDArray[Any]:
    """A mask or bias of rank 2 or full rank over [B, H, rows, kv_len]."""
    held = array if array.shape[-2] == 1 else array[..., list(rows), :]
    return np.broadcast_to(held, (*batch, *full[1:])).reshape(full)


def _by_entry(numbers: npt.NDArray[Any], batch: tuple[int, ...]) -> npt.NDArray[Any]:
    """Segment numbers of each batch entry, [B, length], of numbers that may be those of all."""
    length = numbers.shape[-1]
    return np.broadcast_to(numbers, (*batch, length)).reshape(math.prod(batch), length)


def _visible(
    inputs: Mapping[str, npt.NDArray[Any]],
    options: Mapping[str, Any],
    batch: tuple[int, ...],
    full: tuple[int, ...],
    rows: tuple[int, ...],
) -> Bools:
    """Which key each query may attend: the intersection of everything that masks."""
    size, kv_len = full[0], full[-1]
    visible = np.ones(full, dtype=bool)
    if "mask" in inputs:
        visible &= _spread(inputs["mask"], batch, full, rows)
    if "attn_bias" in inputs:
        visible &= ~np.isneginf(_spread(inputs["attn_bias"], batch, full, rows).astype(np.float64))
    if "q_segments" in inputs:
        held = (_by_entry(inputs[name], batch) for name in ("q_segments", "kv_segments"))
        of_query, of_key = held
        visible &= (of_query[:, list(rows), None] == of_key[:, None, :])[:, None]
    slot = np.arange(kv_len)
    if "kv_lengths" in inputs:
        visible &= (slot < inputs["kv_lengths"].reshape(size, 1))[:, None, None, :]
    offset = inputs["q_offset"] if "q_offset" in inputs else np.asarray(options.get("q_offset") or 0)
    centre = np.broadcast_to(offset.reshape(-1, 1), (size, 1)) + np.array(rows, dtype=np.int64)  # [B, rows]
    distance = (slot - centre[..., None])[:, None]  # [B, 1, rows, kv_len], key minus query position
    if options.get("is_causal"):
        visible &= distance <= 0
    left, right = options.get("window") or (None, None)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible


AT_ONCE = 1 << 22
"""Pairs of a query and a key that one part of a problem has at most, where it can be parted."""


def parts(problem: Problem) -> Iterator[tuple[slice, slice, Problem]]:
    """Batch entries and rows that can be looked at apart, and the problem of each; nearly always one part."""
    every = slice(None)
    if problem.visible.size <= AT_ONCE:
        yield every, every, problem
        return
    of_row = problem.visible[:1, :, :1].size
    rows = min(len(problem.rows), max(1, AT_ONCE // of_row))
    entries = max(1, AT_ONCE // (of_row * rows))
    for b in range(0, problem.size, entries):
        for i in range(0, len(problem.rows), rows):
            place = slice(b, b + entries), slice(i, i + rows)
            yield *place, part(problem, *place)


def part(problem: Problem, entries: slice, rows: slice) -> Problem:
    """Some entries of the batch, and some of the rows that are judged; results of the others are no matter to them."""
    inputs = dict(problem.inputs)
    for name in ("query", "key", "value", "past_key", "past_value", "grad_output", "grad_lse"):
        if name in inputs:
            inputs[name] = inputs[name][entries]
    if "grad_lse" in inputs:
        inputs["grad_lse"] = inputs["grad_lse"][..., rows]
    for name in ("query", "grad_output"):
        if name in inputs:
            inputs[name] = inputs[name][..., rows, :]
    return replace(
        problem,
        batch=(len(range(problem.size)[entries]),),
        inputs=inputs,
        rows=problem.rows[rows],
        visible=problem.visible[entries, :, rows],
        bias=problem.bias[entries, :, rows],
    )


MANY = 1024
"""Entries from which on those that repeat are looked for."""


def once(problem: Problem) -> tuple[Problem, npt.NDArray[np.int64] | None]:
    """The problem of the entries that differ, and which of them each entry is; None where too few are alike."""
    if problem.size < MANY:
        return problem, None
    batched = ("query", "key", "value", "past_key", "past_value", "grad_output")
    own = [problem.inputs[name] for name in batched if name in problem.inputs]
    told = [np.ascontiguousarray(x).reshape(problem.size, -1) for x in (*own, problem.visible, problem.bias)]
    numbers = np.concatenate([x.view(np.uint8) for x in told], axis=1)
    _, first, which = np.unique(numbers, axis=0, return_index=True, return_inverse=True)
    if 4 * len(first) > problem.size:
        return problem, None
    inputs = {name: x[first] if name in batched else x for name, x in problem.inputs.items()}
    some = replace(
        problem,
        batch=(len(first),),
        inputs=inputs,
        visible=problem.visible[first],
        bias=problem.bias[first],
    )
    return some, which.reshape(-1)


def finite(x: Array) -> Array:
    """The array with zeros in place of NaN and Inf."""
    return np.where(np.isfinite(x), x, 0.0)


def for_each_head(x: Array, group: int) -> Array:
    """Keys or values [B, G, kv_len, d] as those of G * group heads; where G is 1 they are not copied."""
    if x.shape[1] == 1:
        return np.broadcast_to(x, (x.shape[0], group, *x.shape[2:]))
    return np.repeat(x, group, axis=1)
