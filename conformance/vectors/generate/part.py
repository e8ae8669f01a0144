"""What is stored of long results: some rows, and whether all the rest is finite."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conformance.vectors.case import Array, Bound, Golden, query_axis
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.normal_form import Bools, Problem, pose

PAIRS = 1 << 26
"""Pairs of a query and a key up to which the whole of a call is looked at."""


def stored(draft: Draft, whole: Mapping[str, Golden]) -> dict[str, Golden]:
    """The rows that a seeded draft names, of each result; and a word on all others.

    Raises:
        ValueError: it names a result that is not there.
    """
    if unknown := draft.sampled.keys() - whole.keys():
        raise ValueError(f"{draft.id} names rows of {unknown.pop()}, which it does not expect")
    found = {
        name: _rows(golden, name, draft.sampled[name]) if name in draft.sampled else golden
        for name, golden in whole.items()
    }
    if not draft.seeded or all(golden.rows is None for golden in found.values()):
        return found
    finite = Finite(draft)
    return {
        name: replace(golden, finite=golden.rows is not None and finite(name))
        for name, golden in found.items()
    }


def _rows(golden: Golden, name: str, rows: tuple[int, ...]) -> Golden:
    axis = query_axis(name, len(golden.shape))
    places = rows if golden.rows is None else [golden.rows.index(row) for row in rows]

    def some(array: Array) -> Array:
        return np.take(array, places, axis)

    assert not golden.signatures
    return replace(
        golden,
        rows=rows,
        hi=some(golden.hi),
        lo=some(golden.lo),
        bounds={
            dtype: {policy: Bound(some(bound.worst), some(bound.rms)) for policy, bound in of.items()}
            for dtype, of in golden.bounds.items()
        },
    )


class Finite:
    """Whether every element of a result is a finite number, by its name."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        floats = {n: x for n, x in draft.inputs.items() if x.dtype.kind == "f" and n != "attn_bias"}
        self.broken = {n for n, x in floats.items() if not np.isfinite(x).all()}
        x, layer = draft.inputs, "w_q" in draft.inputs
        heads = x["w_q"].shape[0] if layer else x["query"].shape[-3]
        past = x["past_key"].shape[-2] if "past_key" in x else 0
        pairs = math.prod(x["query"].shape[: -2 if layer else -3]) * heads
        pairs *= x["query"].shape[-2] * (x["key"].shape[-2] + past)
        known = pairs <= PAIRS
        problem = pose(draft.operation, draft.inputs, draft.options, None) if known else None
        self.full = problem is not None and bool(problem.visible.any(axis=-1).all())
        self.clean = not self.broken if problem is None else self._unseen(problem)

    def __call__(self, name: str) -> bool:
        """Of one result."""
        if name.startswith("present_"):
            argument = name.removeprefix("present_")
            return not self.broken & {argument, f"past_{argument}"}
        return self.clean and (name != "lse" or self.full)

    def _unseen(self, problem: Problem) -> bool:
        """Whether only keys and values are broken, and those that no query sees."""
        if self.broken - {"key", "value", "past_key", "past_value"}:
            return False
        if "attn_bias" in self.draft.inputs and not np.isfinite(problem.bias[problem.visible]).all():
            return False
        seen = problem.visible.any(axis=-2)  # [B, H, kv_len]
        return not any((seen & _broken(problem, name)).any() for name in ("key", "value"))


def _not_finite(x: Array) -> Bools:
    """The rows in which some number is not finite."""
    found: Bools = np.asarray(~np.isfinite(x).all(axis=-1))
    return found


def _broken(problem: Problem, name: str) -> Bools:
    """The keys that are not finite, of every head."""
    rows = _not_finite(problem.inputs[name])
    if problem.layer:
        rows = rows[:, None]
    if f"past_{name}" in problem.inputs:
        past = _not_finite(problem.inputs[f"past_{name}"])
        rows = np.broadcast_to(rows, (*past.shape[:2], rows.shape[-1]))
        rows = np.concatenate([past, rows], axis=-1)
    return np.repeat(rows, problem.num_heads // rows.shape[1], axis=1)
