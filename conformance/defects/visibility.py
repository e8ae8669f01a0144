"""Which key each query may attend, by the rules of the steps."""

from typing import Any

from conformance.defects.call import Call
from conformance.vectors.case import Array


def visibility(s: Any, c: Call) -> Array:
    """Which key each query may attend."""
    place = s.place(c)
    rules = (
        *(s.by_mask(c), s.by_bias(c), s.by_causal(c, place), s.by_window(c, place)),
        *(s.by_lengths(c), s.by_segments(c)),
    )
    visible: Array = s.intersect(c, rules)
    return visible
