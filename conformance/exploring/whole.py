"""A changed call without an offset, with one width, in which each query sees a key, whose tables are in full."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.defects.reference import REFERENCE
from conformance.defects.visibility import visibility
from conformance.diagnosis.posed import call_of
from conformance.exploring.vary import LATER, TABLES, Change, Varied, cut, without

WIDTHS = "d_v other than d_k"


def fillings(v: Varied) -> Iterator[tuple[str, tuple[Change, ...]]]:
    """What a call may do without, which is told by what it sees; and ways to the call without it."""
    if v.given("q_offset"):
        yield "`q_offset`", (_no_offset,)
    for name in TABLES:
        if v.given(name):
            yield f"`{name}` that broadcasts", (partial(_in_full, name=name),)
    if not v.layer and v.size("d_k") != v.size("d_v"):
        yield WIDTHS, (_same_width,)
    if not _seeing(v).all():
        yield "a query that sees no key", (_lengths, _masked, _rows)


def visible(v: Varied) -> Any:
    """What each query of a call sees, [..., H, q_len, kv_len]."""
    return visibility(REFERENCE, call_of(v.operation, v.inputs, v.options))


def _seeing(v: Varied) -> Any:
    """Whether each query sees a key, [..., H, q_len]."""
    return visible(v).any(-1)


def _in_full(v: Varied, name: str) -> Varied:
    """A table with every axis of the logits.

    Raises:
        ValueError: it has them, or there is none.
    """
    shape = visible(v).shape
    if not v.given(name) or v.inputs[name].shape == shape:
        raise ValueError(f"no {name} that broadcasts")
    full = np.ascontiguousarray(np.broadcast_to(v.inputs[name], shape))
    return replace(v, inputs={**v.inputs, name: full}, memory={})


def _no_offset(v: Varied) -> Varied:
    """The call without an offset, or with 0 where lengths that differ need one."""
    bare = without(v, ("q_offset",))
    alike = v.size("q_len") == v.past + v.size("kv_len")
    placed = v.given("is_causal") or v.given("window")
    return bare if alike or not placed else replace(bare, options={**bare.options, "q_offset": 0})


def _same_width(v: Varied) -> Varied:
    least = min(v.size("d_k"), v.size("d_v"))
    return cut(cut(v, "d_k", least), "d_v", least)


def _lengths(v: Varied) -> Varied:
    """No length is zero."""
    if not v.given("kv_lengths"):
        raise ValueError("no lengths")
    return _checked(replace(v, inputs={**v.inputs, "kv_lengths": np.maximum(v.inputs["kv_lengths"], 1)}))


def _masked(v: Varied) -> Varied:
    """The mask hides nothing from a query that sees no key."""
    if not v.given("mask"):
        raise ValueError("no mask")
    full = _in_full(v, "mask") if v.inputs["mask"].shape != visible(v).shape else v
    mask = full.inputs["mask"] | ~_seeing(v)[..., None]
    return _checked(replace(full, inputs={**full.inputs, "mask": mask}, memory={}))


def _rows(v: Varied) -> Varied:
    """Only the queries that see a key everywhere, if they are neighbours."""
    axes = tuple(range(_seeing(v).ndim - 1))
    rows = np.flatnonzero(_seeing(v).all(axes))
    if not len(rows) or rows[-1] - rows[0] >= len(rows):
        raise ValueError("no such rows")
    if rows[0] and (v.given("is_causal") or v.given("window")):
        raise ValueError("another offset may be what it is about")
    found = dict(v.inputs)
    for name in (*LATER, *TABLES):
        if name in found and (name in LATER or found[name].shape[-2] > 1):
            found[name] = found[name][..., rows[0] : rows[-1] + 1, :]
    for name in ("grad_lse", "q_segments"):
        if name in found:
            found[name] = found[name][..., rows[0] : rows[-1] + 1]
    return _checked(replace(v, inputs=found, memory={}))


def _checked(v: Varied) -> Varied:
    """The call.

    Raises:
        ValueError: a query sees no key in it.
    """
    if not _seeing(v).all():
        raise ValueError("a query sees no key")
    return v
