"""A stored case that fails, with one thing changed at a time: what it takes to fail, and what it does not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.names import BIASES, MHA, MHA_VJP
from conformance.vectors.case import Array, Case

LATER = ("query", "grad_output")
"""Operands with an axis of queries, behind which is one of numbers."""
OPERANDS = ("query", "key", "value", "past_key", "past_value", "grad_output")
TABLES = ("mask", "attn_bias")
"""Operands of queries by keys, either of which may be one."""
LOGITS = ("query", "key", "past_key")
FAR = 8.0
"""Size of a number of the query or key above which logits may lie far from zero."""
PLAIN = ("mask", "attn_bias", "sinks", "softcap", "scale", "window", "return_weights", "return_lse")
"""Options that a call has or has not, whatever else it has."""


@dataclass(frozen=True)
class Varied:
    """A call as a case has it, without what is expected."""

    operation: str
    inputs: Mapping[str, Array]
    options: Mapping[str, Any]
    memory: Mapping[str, str]
    dtype_of: Mapping[str, str]

    @property
    def layer(self) -> bool:
        """Whether it projects."""
        return self.operation in (MHA, MHA_VJP)

    @property
    def past(self) -> int:
        """Keys of a past."""
        return self.inputs["past_key"].shape[-2] if "past_key" in self.inputs else 0

    def size(self, name: str) -> int:
        """`q_len`, `kv_len` without a past, `d_k`, `d_v`, the number of `heads`, `kv_heads` or `entries`."""
        query, key, value = (self.inputs[each].shape for each in ("query", "key", "value"))
        return {
            "q_len": query[-2],
            "kv_len": key[-2],
            "d_k": query[-1],
            "d_v": value[-1],
            "heads": 1 if self.layer else query[-3],
            "kv_heads": 1 if self.layer else key[-3],
            "entries": query[0] if len(query) > (2 if self.layer else 3) else 1,
        }[name]

    def given(self, name: str) -> bool:
        """Whether an option is."""
        return name in self.inputs or name in self.options


def varied(case: Case) -> Varied:
    """The call of a case."""
    inputs = {name: case.inputs[name] for name in case.inputs}
    return Varied(case.operation, inputs, dict(case.options), dict(case.memory), dict(case.dtype_of))


def without(v: Varied, names: tuple[str, ...]) -> Varied:
    """The same call without some options.

    Raises:
        ValueError: none of them is given.
    """
    if not any(v.given(name) for name in names):
        raise ValueError(f"no {names}")
    return replace(
        v,
        inputs={name: x for name, x in v.inputs.items() if name not in names},
        options={name: x for name, x in v.options.items() if name not in names},
        memory={name: x for name, x in v.memory.items() if name not in names},
        dtype_of={name: x for name, x in v.dtype_of.items() if name not in names},
    )


Change = Callable[[Varied], Varied]


def changes(v: Varied) -> Iterator[tuple[str, tuple[Change, ...]]]:
    """What a call may do without, in words, and ways to the call without it: it can if it fails by one of them.

    A way raises ValueError where there is none.
    """
    if v.memory:
        yield "an operand that is not contiguous", (lambda v: replace(v, memory={}),)
    if v.inputs["query"].ndim > (3 if v.layer else 4):
        yield "several batch axes", (_one_axis,)
    if (entries := v.size("entries")) > 1:
        yield "several batch entries", (partial(entry, number=entries - 1), partial(entry, number=0))
    if v.size("heads") > v.size("kv_heads"):
        yield "query heads that share a key head", (_ungrouped,)
    if v.size("kv_heads") > 1:
        yield "several heads", (partial(_one_head, which=slice(-1, None)), partial(_one_head, which=slice(1)))
    if any(not np.isfinite(v.inputs[name]).all() for name in OPERANDS if name in v.inputs):
        yield "NaN or infinity in an operand", (_finite,)
    if v.given("past_key"):
        yield "a past", (_no_past, _forgotten)
    for name in PLAIN:
        if v.given(name):
            yield f"`{name}`", (partial(without, names=(name,)),)
    if v.given("kv_lengths"):
        yield "`kv_lengths`", (lambda v: without(_finite(v), ("kv_lengths",)),)
    if v.given("is_causal"):
        yield "`is_causal`", (_uncausal,)
    if "q_offset" in v.inputs:
        yield "`q_offset` as an array", (_one_offset,)
    for name in BIASES:
        if v.given(name):
            yield f"`{name}`", (partial(without, names=(name,)),)
    if v.dtype_of:
        yield "an operand of another dtype", (lambda v: replace(v, dtype_of={}),)
    if any(name in v.inputs and np.abs(_finite(v).inputs[name]).max(initial=0) > FAR for name in LOGITS):
        yield "large numbers in query or key", (_near,)


def parts(v: Varied) -> Iterator[tuple[tuple[str, ...], Varied]]:
    """One head of one entry, and what it goes without in words: a small part of a call that has several of both."""
    entries, several = v.size("entries"), v.size("kv_heads") > 1
    shared = v.size("heads") > v.size("kv_heads")
    if v.layer or v.inputs["query"].ndim > 4 or entries * v.size("heads") == 1:
        return
    told = ("several batch entries",) * (entries > 1)
    told += ("query heads that share a key head",) * shared + ("several heads",) * several
    for number in dict.fromkeys((entries - 1, 0)):
        of = entry(v, number) if entries > 1 else v
        of = _ungrouped(of) if shared else of
        for which in (slice(-1, None), slice(1)) if several else ():
            yield told, _one_head(of, which)
        if not several:
            yield told, of


def _finite(v: Varied) -> Varied:
    return replace(
        v, inputs={n: np.where(np.isfinite(x), x, 0) if n in OPERANDS else x for n, x in v.inputs.items()}
    )


def _uncausal(v: Varied) -> Varied:
    return without(v, ("is_causal",)) if v.given("window") else without(v, ("is_causal", "q_offset"))


def _one_offset(v: Varied) -> Varied:
    offsets = v.inputs.get("q_offset")
    v = without(v, ("q_offset",))
    if offsets is None:
        raise ValueError("q_offset is no array any more")
    offset = int(offsets.reshape(-1)[-1])
    return replace(v, options={**v.options, "q_offset": offset})


def _no_past(v: Varied) -> Varied:
    """The past stands before the keys and values, where these are no operands of a projection."""
    if v.layer:
        raise ValueError("the past of a layer is projected")
    whole = {x: np.concatenate([v.inputs[f"past_{x}"], v.inputs[x]], axis=-2) for x in ("key", "value")}
    v = without(v, ("past_key", "past_value"))
    return replace(v, inputs={**v.inputs, **whole})


def _forgotten(v: Varied) -> Varied:
    """The new keys alone: tables and lengths lose what stands before them, and positions count from there."""
    before = v.inputs["past_key"].shape[-2]
    found, options = dict(v.inputs), dict(v.options)
    for name in TABLES:
        if name in found and found[name].shape[-1] > 1:
            found[name] = found[name][..., before:]
    for name, least in (("kv_lengths", 0), ("q_offset", -before)):
        if name in found:
            found[name] = np.maximum(found[name] - before, least)
    options |= {"q_offset": options["q_offset"] - before} if "q_offset" in options else {}
    return without(replace(v, inputs=found, options=options), ("past_key", "past_value"))


def _one_axis(v: Varied) -> Varied:
    """All batch axes in one."""
    axes = v.inputs["query"].ndim - (2 if v.layer else 3)
    if v.layer and any(name in v.inputs for name in (*TABLES, "past_key")):
        raise ValueError("these have an axis of heads more")
    found = {}
    for name, x in v.inputs.items():
        if name in OPERANDS:
            found[name] = x.reshape(-1, *x.shape[axes:])
        elif name in TABLES and x.ndim > 2:
            lead = v.inputs["query"].shape[:axes]
            found[name] = np.broadcast_to(x, (*lead, *x.shape[axes:])).reshape(-1, *x.shape[axes:])
        else:
            found[name] = x.reshape(-1) if name in ("kv_lengths", "q_offset") else x
    return replace(v, inputs=found, memory={})


def entry(v: Varied, number: int) -> Varied:
    """One entry of the first batch axis, which stays as an axis of one."""
    rank = v.inputs["query"].ndim

    def cut(name: str, x: Array) -> Array:
        batched = x.ndim == rank if name in (*OPERANDS, *TABLES) else name in ("kv_lengths", "q_offset")
        if v.layer and name in TABLES:
            batched = x.ndim == rank + 1
        if not batched or not x.ndim or x.shape[0] == 1:
            return x
        return x[number : number + 1]

    past = {"past_key", "past_value"} if v.layer else set()  # which have an axis of heads more
    return replace(
        v,
        inputs={n: x[number : number + 1] if n in past else cut(n, x) for n, x in v.inputs.items()},
        memory={},
    )


def _ungrouped(v: Varied) -> Varied:
    return _heads(v, v.size("heads") // v.size("kv_heads"))


def _one_head(v: Varied, which: slice) -> Varied:
    """The last query head with its key head, or the first."""
    one = {name: x[..., which, :, :] for name, x in v.inputs.items() if name in OPERANDS}
    one |= {name: x[..., which, :, :] for name, x in v.inputs.items() if name in TABLES and x.ndim > 2}
    one |= {"sinks": v.inputs["sinks"][which]} if "sinks" in v.inputs else {}
    return replace(v, inputs={**v.inputs, **one}, memory={})


def _near(v: Varied) -> Varied:
    """Numbers of the query and key that are at most one, by a power of two."""
    found = dict(v.inputs)
    for name in LOGITS:
        if name in found:
            x = found[name]
            most = float(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0))
            found[name] = x * 2.0 ** -np.ceil(np.log2(max(most, 1.0)))
    return replace(v, inputs=found)


def _heads(v: Varied, step: int) -> Varied:
    """One query head of each group."""
    some = {name: v.inputs[name][..., ::step, :, :] for name in LATER if name in v.inputs}
    some |= {
        n: x[..., ::step, :, :] for n, x in v.inputs.items() if n in TABLES and x.ndim > 2 and x.shape[-3] > 1
    }
    some |= {"sinks": v.inputs["sinks"][::step]} if "sinks" in v.inputs else {}
    return replace(v, inputs={**v.inputs, **some}, memory={})


def otherwise(v: Varied, seed: int) -> Varied:
    """The same call with other numbers in its operands, which every dtype holds; what is not finite stays."""
    dice = np.random.default_rng(seed)
    found = dict(v.inputs)
    for name in OPERANDS:
        if name in found:
            x = found[name]
            found[name] = np.where(np.isfinite(x), np.clip(dice.normal(size=x.shape), -3, 3), x)
            found[name] = np.where(np.isfinite(x), np.round(found[name] * 16) / 16, x)
    return replace(v, inputs=found)


def axes(v: Varied) -> tuple[str, ...]:
    """The sizes that may be cut: both lengths at once where a position is counted from the first of either."""
    bound = (v.given("is_causal") or v.given("window")) and not v.given("q_offset")
    lengths = ("length",) if bound and v.size("q_len") == v.size("kv_len") else ("kv_len", "q_len")
    return (*lengths, *(() if v.layer else ("d_k", "d_v")))


def extent(v: Varied, axis: str) -> int:
    """How long an axis is."""
    return v.size("q_len" if axis == "length" else axis)


def cut(v: Varied, axis: str, to: int) -> Varied:
    """The call with an axis cut to its first so many."""
    if axis == "length":
        return cut(cut(v, "kv_len", to), "q_len", to)
    found = dict(v.inputs)
    if axis == "q_len":
        for name in (*LATER, *TABLES):
            if name in found and (name in LATER or found[name].shape[-2] > 1):
                found[name] = found[name][..., :to, :]
    elif axis == "kv_len":
        before = v.past
        for name in ("key", "value"):
            found[name] = found[name][..., :to, :]
        for name in TABLES:
            if name in found and found[name].shape[-1] > 1:
                found[name] = found[name][..., : before + to]
        if "kv_lengths" in found:
            found["kv_lengths"] = np.minimum(found["kv_lengths"], before + to)
    else:
        those = ("query", "key", "past_key") if axis == "d_k" else ("value", "past_value", "grad_output")
        for name in those:
            if name in found:
                found[name] = found[name][..., :to]
    return replace(v, inputs=found, memory={})
