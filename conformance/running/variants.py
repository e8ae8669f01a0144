"""New questions made of stored cases, whose answers follow exactly from the stored ones (CONF-16).

Attention does not know in which order batch entries, heads, queries and keys come, and is odd in what it
averages. So a case whose entries are put in another order, and whose values have the other sign, has the stored
answer in that order and with that sign: exactly, and so have its bounds, which hold for any order of summation
and do not look at signs. An implementation that remembers answers, by whatever of a question, does not know it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from conformance.judging.verdict import Row
from conformance.names import APPEND, LATENT, MERGE, MHA, MHA_VJP, PACKED, PAGED, SDPA, SDPA_VJP, SERVING
from conformance.running.arrays import SHARED as SHARED_ARRAY
from conformance.running.messages import Question
from conformance.vectors.case import Array, Bound, Case, Golden, query_axis

SHARE, LEAST = 0.05, 8
"""Which part of the rows of a run has a variant asked as well, and at least how many."""

FORWARD = {SDPA: SDPA, SDPA_VJP: SDPA, MHA: MHA, MHA_VJP: MHA}
NEGATED: Mapping[str, tuple[str, ...]] = {
    PACKED: ("value",),
    PAGED: ("value_pages", "new_value"),
    APPEND: ("value_pages", "new_value"),
    LATENT: ("query", "latent"),
    MERGE: ("outputs",),
}
"""What may be given with the other sign, of operations in which nothing is put in another order."""

ENTRIES: Mapping[str, str] = {
    "batch": "its batch entries in another order",
    "group": "its heads in another order",
    "query": "its queries in another order",
    "key": "its keys in another order",
}
"""What is put in another order, in words; a group is a key head with the query heads that read it."""

# Where each array has the axes that are reordered, from the end; `head` follows from `group`.
ATTENTION: Mapping[str, Mapping[str, int]] = {
    "query": {"head": -3, "query": -2},
    "key": {"group": -3, "key": -2},
    "value": {"group": -3, "key": -2},
    "output": {"head": -3, "query": -2},
}
LAYER: Mapping[str, Mapping[str, int]] = {
    "query": {"query": -2},
    "key": {"key": -2},
    "value": {"key": -2},
    "output": {"query": -2},
    "w_q": {"head": -3},
    "w_k": {"group": -3},
    "w_v": {"group": -3},
    "w_o": {"head": -3},
    "b_q": {"head": -2},
    "b_k": {"group": -2},
    "b_v": {"group": -2},
}
BOTH: Mapping[str, Mapping[str, int]] = {
    "mask": {"head": -3, "query": -2, "key": -1},
    "attn_bias": {"head": -3, "query": -2, "key": -1},
    "weights": {"head": -3, "query": -2, "key": -1},
    "lse": {"head": -2, "query": -1},
    "grad_lse": {"head": -2, "query": -1},
    "q_segments": {"query": -1},
    "kv_segments": {"key": -1},
    "sinks": {"head": -1},
    "past_key": {"group": -3},
    "past_value": {"group": -3},
    "present_key": {"group": -3},
    "present_value": {"group": -3},
}
SHARED = ("sinks", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
"""Arrays that every batch entry has in common."""


@dataclass(frozen=True)
class Variant:
    """A new question with its answer, and what makes it differ from the stored one."""

    case: Case
    words: str
    seed: str


def with_variants(questions: Sequence[Question], seed: int) -> list[Question]:
    """The questions, some of them with what a variant is to be drawn from; the same for the same seed."""
    able = [q for q in questions if not q.unclaimed and not q.case.raises]
    drawn = {(q.case.id, q.dtype): f"{seed}/{q.case.id}/{q.dtype}" for q in able}
    number = max(LEAST, round(SHARE * len(able)))
    order = sorted(able, key=lambda q: sha256(drawn[q.case.id, q.dtype].encode()).digest())
    chosen = _changes(order, number)
    return [
        replace(q, seed=drawn[key], changed=chosen[key]) if (key := (q.case.id, q.dtype)) in chosen else q
        for q in questions
    ]


def _changes(order: Sequence[Question], number: int) -> dict[tuple[str, str], str]:
    """Which questions have a variant, and the operand that differs next to nothing in the call before it.

    So many of the first ones, and for each operand, option and other feature of each operation the first with it.
    """
    chosen: dict[tuple[str, str], str] = {}
    met: set[tuple[str, str]] = set()
    for q in order:
        key, options = (q.case.id, q.dtype), [n for n in q.case.features if n not in q.case.inputs]
        names = [name for name in q.case.inputs if q.case.memory.get(name) != SHARED_ARRAY]
        new = [n for n in (*names, *options) if (q.case.operation, n) not in met]
        if new or len(chosen) < number:
            met.update((q.case.operation, n) for n in new[:1])
            chosen[key] = new[0] if new[:1] and new[0] in names else random.Random(q.case.id).choice(names)
    return chosen


def variant(case: Case, seed: str) -> Variant:
    """A variant of a case that has an answer, drawn from a seed."""
    draw = random.Random(seed)
    orders = _orders(case, draw)
    negated, results = _negated(case)
    inputs = {name: _moved(case, name, array, orders) for name, array in case.inputs.items()}
    inputs |= {name: -inputs[name] for name in negated}
    expected = {
        name: _golden(case, name, golden, orders, -1.0 if name in results else 1.0)
        for name, golden in case.expected.items()
    }
    words = [f"{' and '.join(negated)} negated", *(ENTRIES[name] for name in ENTRIES if name in orders)]
    memory = {name: how for name, how in case.memory.items() if how != SHARED_ARRAY}  # they now differ
    return Variant(
        replace(case, inputs=inputs, expected=expected, memory=memory, seeded={}), ", ".join(words), seed
    )


def unlike(row: Row, again: Row, made: Variant, how: str = "", requirement: str = "CONF-16") -> Row:
    """The row of a case that is answered though its variant is not: that of the variant, which says so, or how."""
    where = f"{made.words}; --fresh {made.seed.partition('/')[0]}"
    how = how or "answers the stored case but not its variant"
    return replace(
        again,
        verdict="fail" if again.verdict == "unsupported" else again.verdict,
        message=f"{how} ({where}): {again.message} ({requirement})",
        seconds=row.seconds + again.seconds,
        got=(),
        got_left_out="it is the answer to a variant of the case",
    )


def _negated(case: Case) -> tuple[tuple[str, ...], frozenset[str]]:
    """Which inputs are given with the other sign, and which results have it then."""
    if case.operation in SERVING:
        names = tuple(name for name in NEGATED[case.operation] if name in case.inputs)
        return names, frozenset({"output", "value_pages"})
    if case.operation in (SDPA_VJP, MHA_VJP):
        given = tuple(name for name in ("grad_output", "grad_lse") if name in case.inputs)
        return given, frozenset(case.expected)
    if case.operation == MHA:
        return tuple(name for name in ("w_o", "b_o") if name in case.inputs), frozenset({"output"})
    names = tuple(name for name in ("value", "past_value") if name in case.inputs)
    return names, frozenset({"output", "present_value"})


def _orders(case: Case, draw: random.Random) -> dict[str, list[int]]:
    """New orders of what may be reordered; nothing that has one entry, or happens to stay as it is."""
    if case.operation in SERVING:
        return {}
    layer, inputs, options = FORWARD[case.operation] == MHA, case.inputs, case.options
    query, key = inputs["query"].shape, inputs["key"].shape
    free = not options.get("is_causal") and options.get("window") is None
    heads, groups = (inputs["w_q"].shape[0], inputs["w_k"].shape[0]) if layer else (query[-3], key[-3])
    sizes = {"batch": query[0] if len(query) > (2 if layer else 3) else 1, "group": groups}
    if free:
        sizes["query"] = query[-2]
    if free and "kv_lengths" not in inputs and "past_key" not in inputs:
        sizes["key"] = key[-2]
    orders = {name: draw.sample(range(size), size) for name, size in sizes.items()}
    each = heads // max(groups, 1)  # query heads that read one key head
    orders["head"] = [g * each + r for g in orders["group"] for r in draw.sample(range(each), each)]
    if orders["head"] == sorted(orders["head"]):
        del orders["group"]
    return {name: order for name, order in orders.items() if name == "group" or order != sorted(order)}


def _axes(case: Case, name: str, array_axes: int) -> dict[str, int]:
    """Where an input or result has the axes that may be reordered, counted from the end."""
    if case.operation in SERVING:
        return {}
    layer = FORWARD[case.operation] == MHA
    axes = dict(
        {**(LAYER if layer else ATTENTION), **BOTH}.get("output" if name == "grad_output" else name, {})
    )
    batch = case.inputs["query"].ndim - (2 if layer else 3)
    known = {"kv_lengths": 0, "q_offset": 0, "q_segments": 1, "kv_segments": 1, "mask": 3, "attn_bias": 3}
    own = known.get(name, array_axes - batch)
    if batch and name not in SHARED and array_axes == batch + own:
        axes["batch"] = -array_axes
    return {kind: axis for kind, axis in axes.items() if -axis <= array_axes}


def _moved(case: Case, name: str, array: Array, orders: Mapping[str, list[int]], held: str = "") -> Array:
    """An input or result in its new order; an axis that broadcasts stays, and so does `held`."""
    for kind, axis in _axes(case, name, array.ndim).items():
        if kind in orders and kind != held and array.shape[axis] > 1:
            array = np.take(array, orders[kind], axis=axis)
    return array


def _golden(case: Case, name: str, golden: Golden, orders: Mapping[str, list[int]], sign: float) -> Golden:
    """A golden value in its new order; sampled rows keep their place in it and get new numbers."""
    axis, held, rows = query_axis(name, len(golden.shape)) - len(golden.shape), "", golden.rows
    if rows is not None:
        held = next((kind for kind, at in _axes(case, name, len(golden.shape)).items() if at == axis), "")
        rows = tuple(orders[held].index(row) for row in rows) if held in orders else rows

    def move(array: Array) -> Array:
        return _moved(case, name, array, orders, held)

    return replace(
        golden,
        rows=rows,
        hi=sign * move(golden.hi),
        lo=sign * move(golden.lo),
        bounds={
            dtype: {policy: Bound(move(bound.worst), move(bound.rms)) for policy, bound in policies.items()}
            for dtype, policies in golden.bounds.items()
        },
        signatures={
            name: replace(signature, direction=sign * move(signature.direction))
            for name, signature in golden.signatures.items()
        },
    )
