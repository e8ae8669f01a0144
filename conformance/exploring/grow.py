"""A call with more queries than its case has: whether a mistake ends where there are many of them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from conformance.exploring.vary import LATER, TABLES, Varied

MOST = 32
"""Queries of a case above which it is not given more."""


def grown(v: Varied, to: int) -> Varied:
    """The call with queries repeated until there are so many; each has the row of a table that it had."""
    found = dict(v.inputs)
    for name in (*LATER, *TABLES, "grad_lse", "q_segments"):
        axis = -1 if name in ("grad_lse", "q_segments") else -2
        if name in found and (name not in TABLES or found[name].shape[-2] > 1):
            rows = np.arange(to) % found[name].shape[axis]
            found[name] = np.take(found[name], rows, axis=axis)
    return replace(v, inputs=found, memory={})


def up_to(v: Varied, fails: Callable[[Varied], bool | None]) -> int | None:
    """The most queries that a failing call may have to fail; None where more of them fail as well."""
    least = v.size("q_len")
    high = 4 * least + 16
    if not 0 < least <= MOST or fails(grown(v, high)) is not False:
        return None
    while high - least > 1:
        middle = (least + high) // 2
        if fails(grown(v, middle)) is not False:
            least = middle
        else:
            high = middle
    return least
