"""Gradients from weights that are computed anew: the unit of the lse, empty rows, Delta, and whose row is read."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after
from conformance.defects.blocks.back import NONE_FULL, anew, delta_of_heads, exponential, families
from conformance.defects.blocks.edges import Edges, begin_of, family, whole
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

LN2 = float(np.log(2))


def _units(logits: float, lse: float) -> Change:
    """exp(a logits - b lse)."""
    return anew(lambda c, x, held, shown: exponential(c, x * c.wide(logits), held * c.wide(lse), shown))


def _divided_again(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
    """The lse holds the denominator already."""
    some = np.isfinite(lse)
    total = np.exp(np.where(some, lse, c.wide(0)) - R.peak(c, logits, shown))
    return exponential(c, logits, lse, shown) / np.where(some, total, c.wide(1))


def _nan_for_empty(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
    """-inf less -inf."""
    return np.where(np.isneginf(lse), c.wide(np.nan), exponential(c, logits, lse, shown))


def _one_for_empty(c: Call, logits: Array, lse: Array, shown: Array) -> Any:
    """A large negative number for what is hidden, less the same number as lse."""
    return np.where(np.isneginf(lse), c.wide(1), exponential(c, logits, lse, shown))


def _undivided() -> Change:
    """Delta of the heads before they are divided; the maximum is that of the way forward."""
    kept: dict[str, Array] = {}

    def total(c: Call, raised: Array, peak: Array) -> Any:
        kept["total"] = R.total(c, raised, peak)
        return kept["total"]

    return {
        "total": total,
        "delta": lambda c, p, products, g, heads: R.delta(c, p, products, g, heads) * kept["total"],
    }


def _grouped(c: Call, x: Array) -> Array:
    """That of the first query head of each group."""
    head = np.arange(c.heads)
    group = c.heads // c.kv_heads
    return np.take(x, head // group * group, axis=-3)


def _row(c: Call, e: Edges) -> Any:
    """The number of the first query of each query's block, [q_len, 1]."""
    return begin_of(e(c.q_len), np.arange(c.q_len))[:, None]


def _local(c: Call, e: Edges, x: Array) -> Array:
    """Rows of the first block of queries, for each block."""
    row = np.arange(c.q_len)
    return np.take(x, row - begin_of(e(c.q_len), row), axis=-2)


def _first_rows(lse: bool, delta: bool) -> Callable[[Edges], Change]:
    def make(e: Edges) -> Change:
        return anew(
            lambda c, x, held, shown: exponential(c, x, _local(c, e, held) if lse else held, shown),
            lambda c, *given: _local(c, e, delta_of_heads(c, *given)) if delta else delta_of_heads(c, *given),
        )

    return make


def _of_group(lse: bool, delta: bool) -> Change:
    return anew(
        lambda c, x, held, shown: exponential(c, x, _grouped(c, held) if lse else held, shown),
        lambda c, *given: _grouped(c, delta_of_heads(c, *given)) if delta else delta_of_heads(c, *given),
    )


def _delta_kept(shown: Callable[[Call, Edges], Any]) -> Callable[[Edges], Change]:
    """Delta that was computed for some rows only, and is zero in the others."""
    return lambda e: after("delta", lambda c, x: np.where(shown(c, e), x, c.wide(0)))


EMPTY, GROUPED = ("empty",), ("gqa",)

DEFECTS = (
    Defect("grad-anew-in-mixed-units",
           "The weights are computed anew from logits, an lse and a power that are not of one base, 2 or e.",
           ("GRAD-1",), _units(1, LN2), detail="2 ** (logits in base 2 - natural lse)",
           variants={"exp(natural logits - lse in base 2)": _units(1, 1 / LN2),
                     "2 ** (natural logits - lse in base 2)": _units(LN2, 1),
                     "exp(logits in base 2 - natural lse)": _units(1 / LN2, 1),
                     "2 ** (natural logits - natural lse)": _units(LN2, LN2),
                     "exp(logits in base 2 - lse in base 2)": _units(1 / LN2, 1 / LN2)}),
    Defect("grad-anew-divided-again",
           "Weights that are computed anew from the lse are divided by the denominator once more.",
           ("GRAD-1",), anew(_divided_again)),
    Defect("grad-anew-empty-nan",
           "An empty row has an lse of -inf, so that its weights are NaN when they are computed anew.",
           ("GRAD-4", "GRAD-15"), anew(_nan_for_empty), features=EMPTY),
    Defect("grad-anew-empty-ones",
           "In an empty row each hidden key has a weight of one when the weights are computed anew.",
           ("GRAD-4", "GRAD-3"), anew(_one_for_empty), features=EMPTY),
    Defect("grad-rows-of-first-block",
           "On the way back every block of queries reads the lse and the Delta of the first block.",
           ("GRAD-1",),
           **families(_first_rows(True, True),
               {"the lse only": _first_rows(True, False), "Delta only": _first_rows(False, True)}, "q_len")),
    Defect("grad-rows-of-first-head-of-group",
           "On the way back lse and Delta are read by key head: the first query head's serve its whole group.",
           ("GRAD-6", "GRAD-1"), _of_group(True, True), features=GROUPED,
           variants={"the lse only": _of_group(True, False), "Delta only": _of_group(False, True)}),
    Defect("grad-delta-undivided", "Delta is formed from heads that are not yet divided by the denominator.",
           ("GRAD-1",), _undivided),
    Defect("grad-delta-first-block-of-queries",
           "Delta is computed for the first block of queries only, and is zero for the others.", ("GRAD-1",),
           **family(_delta_kept(lambda c, e: _row(c, e) == 0), at=4, reach="q_len")),
    Defect("grad-delta-tail-zero", "Delta of queries behind the last full block is zero.", ("GRAD-1",),
           **families(_delta_kept(lambda c, e: np.arange(c.q_len)[:, None] < (whole(e, c.q_len) or c.q_len)),
                      {NONE_FULL: _delta_kept(lambda c, e: np.arange(c.q_len)[:, None] < whole(e, c.q_len))},
                      "q_len")),
)  # fmt: skip
