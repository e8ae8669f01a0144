"""The way back of a kernel: weights computed anew from the lse, by tiles of queries and keys."""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.blocks.edges import REACH, Edges, family
from conformance.defects.call import Call
from conformance.defects.defect import Change, by_detail, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array

Shown = Callable[[Steps, Call], Array]
"""What the way back takes for visible, [..., H, q_len, kv_len]."""
Weights = Callable[[Call, Array, Array, Array], Any]
"""c, logits, lse [..., H, q_len, 1], shown -> weights."""
Delta = Callable[[Call, Array, Array, Array, Array], Any]
"""c, weights, dP, gradient of the heads, heads -> Delta, [..., H, q_len, 1]."""

QUERY = ("query", "w_q", "b_q")
KEY_AND_VALUE = ("key", "w_k", "b_k", "value", "w_v", "b_v")


def exponential(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
    """As it should be; a row without lse is empty."""
    some = np.isfinite(lse)
    return np.exp(np.where(shown & some, logits - np.where(some, lse, c.wide(0)), c.wide(-np.inf)))


def delta_of_heads(c: Call, weights: Array, products: Array, gradient: Array, heads: Array) -> Any:
    """As it should be, of the heads that are kept: neither weights nor dP are needed."""
    return (gradient * heads).sum(axis=-1, keepdims=True)


def anew(
    weights: Weights = exponential,
    delta: Delta = delta_of_heads,
    shown: Shown = visibility,
) -> Change:
    """Gradients of a kernel that keeps heads and lse of the way forward."""

    def compute(s: Steps, c: Call) -> dict[str, Array]:
        kept: dict[str, Array] = {}

        def softmax(_: Steps, c: Call, logits: Array, visible: Array) -> tuple[Array, Array]:
            kept["weights"], lse = s.softmax(s, c, logits, visible)
            kept["shown"] = shown(s, c)
            return weights(c, logits, lse[..., None], kept["shown"]), lse

        def average(c: Call, p: Array, value: Array, visible: Array) -> Any:
            return s.average(c, kept["weights"], value, visible)

        wrong = replace(
            s,
            softmax=softmax,
            average=average,
            products=lambda c, g, v, visible: s.products(c, g, v, kept["shown"]),
            delta=delta,
        )
        found: dict[str, Array] = R.compute_gradients(wrong, c)
        return found

    return {"compute_gradients": compute}


def alone(change: Change, *names: str) -> Change:
    """A change that acts on some gradients only: those of one kernel of several."""
    steps = {name: step for name, step in change.items() if name != "compute_gradients"}
    compute = change.get("compute_gradients", R.compute_gradients)

    def both(s: Steps, c: Call) -> dict[str, Array]:
        wrong = compute(replace(s, **steps), c)
        return {**R.compute_gradients(s, c), **{name: x for name, x in wrong.items() if name in names}}

    return {"compute_gradients": both}


def cleared(change: Change) -> Change:
    """A kernel that reads zeros behind kv_lengths."""

    def compute(s: Steps, c: Call) -> dict[str, Array]:
        def join(c: Call, key: Array, value: Array) -> Any:
            there = True if c.kv_lengths is None else c.columns[:, None] < c.kv_lengths[..., None, None, None]
            return tuple(np.where(there, x, c.wide(0)) for x in s.join(c, key, value))

        found: dict[str, Array] = change["compute_gradients"](replace(s, join=join), c)
        return found

    return {"compute_gradients": compute}


SIZES = (4, 8, 16, 32, 64)
WHOLE = 1 << 20


def tiled(make: Callable[[int, int], Change], whole: bool = False) -> Mapping[str, Any]:
    """The change in tiles of 8 queries and 8 keys, and in tiles of other sizes, as fields of a Defect.

    `whole` adds tiles that are four times as long as wide and more, blocks of keys that all queries meet at once,
    and blocks of queries that meet all keys.
    """
    made = {
        f"in tiles of {queries} queries and {keys} keys": make(queries, keys)
        for queries in SIZES
        for keys in SIZES
        if whole or keys in (queries // 2, queries, queries * 2)
    }
    if whole:
        made |= {f"in blocks of {size} keys": make(WHOLE, size) for size in SIZES}
        made |= {f"in blocks of {size} queries": make(size, WHOLE) for size in SIZES}
    return varied(made, "in tiles of 8 queries and 8 keys")


NONE_FULL = "all of them if no block is full"


def families(
    make: Callable[[Edges], Change],
    others: Mapping[str, Callable[[Edges], Change]],
    reach: str,
    anywhere: Container[str] = (NONE_FULL,),
) -> Any:
    """A family by block size, and beside it those of the same mistake in some part, by what is said of that.

    Those that are `anywhere` show below one block as well, or along another axis.
    """
    fields = family(make, at=4, reach=reach)
    sizes = dict(REACH)
    for label, other in others.items():
        for detail, change in by_detail(family(other, at=4, reach=reach)).items():
            fields["variants"][f"{label}, {detail}"] = change
            if detail in REACH and label not in anywhere:
                sizes[f"{label}, {detail}"] = REACH[detail]
    return {**fields, "beyond": (reach, sizes)}
