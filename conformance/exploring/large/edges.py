"""Places of an axis that are looked at: the last, the first, both sides of edges, and others."""

from collections.abc import Iterable

from conformance.exploring.counter import Dice
from conformance.exploring.large.call import Large
from conformance.exploring.large.seen import TILES

BACKWARD = 1 << 16
"""Pairs of a query and a key on which gradients may rest that are judged under the ordinary bound."""
ROWS = 16
"""Rows of a head that are judged at most."""


def edges(dice: Dice, size: int, edges: Iterable[int], most: int) -> tuple[int, ...]:
    """At most so many numbers below a size: the last, the first, edges, others."""
    some = [edge for edge in edges if edge < size]
    wanted = dict.fromkeys([size - 1, 0, *dice.order(some)[: max(most // 2, 1)]])
    while len(wanted) < min(most, size):
        wanted[dice.below(size)] = None
    return tuple(list(wanted)[:most])


def few_rows(call: Large) -> tuple[int, ...]:
    """The rows of every head whose cotangent is not zero, where it is in all others."""
    dice = Dice("few rows", call.stream, call.q_len)
    count = max(BACKWARD // (2 * call.group * call.kv_len), 2)
    return edges(dice, call.q_len, (n + k for n in TILES for k in (-1, 0)), min(count, ROWS))
