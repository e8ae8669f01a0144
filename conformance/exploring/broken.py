"""Visible numbers that are NaN or infinite: one of an operand, or a column of all keys of a head (ATT-10, ATT-11)."""

import numpy as np

from conformance.exploring.counter import key
from conformance.vectors.case import Array

KINDS = {"n": np.nan, "p": np.inf, "m": -np.inf}
"""Kind -> the one number of an operand that is this, the plainest first."""
EVERY_KEY = "e"
"""Of the key alone: -inf in a column of every key of one head, so that no logit of its rows is finite."""
SAID = {"n": "a NaN", "p": "+inf", "m": "-inf", EVERY_KEY: "-inf of every key"}
OPERANDS = ("query", "key", "value", "attn_bias")


def kinds(operand: str, layer: bool) -> tuple[str, ...]:
    """The kinds that an operand may have: a bias of -inf hides, and what projections make of infinity is not asked."""
    if layer:
        return ("n",)
    return {"key": (*KINDS, EVERY_KEY), "attn_bias": ("n", "p")}.get(operand, tuple(KINDS))


def said(operand: str, failing: tuple[str, ...]) -> str:
    """What has to be in an operand for a call to fail: `a NaN in value`, `NaN or infinity in key`."""
    if set(failing) >= set(KINDS) or failing == ("n", "p"):
        return f"NaN or infinity in {operand}"
    return f"{' or '.join(SAID[kind] for kind in failing)} in {operand}"


def broken(array: Array, operand: str, kind: str, stream: int, seen: Array | None) -> Array:
    """The array with such a number in it.

    Args:
        array: of any shape.
        operand: its name.
        kind: one of `kinds`.
        stream: where the place comes from; in a smaller array it is a place of that.
        seen: of a key or value, the share of the rows that see each token, in the shape of the array without its
            last axis. Tokens that all rows see come first, or with another stream those that any row sees.
    """
    if not array.size:
        return array
    array, word = np.array(array), key("broken", operand, stream)
    place = []
    for size in array.shape:
        place.append(word % size)
        word //= size
    if seen is not None:
        shares = seen[tuple(place[:-2])]
        wanted = shares == 1 if word % 2 and (shares == 1).any() else shares > 0
        tokens = np.flatnonzero(wanted) if wanted.any() else np.arange(array.shape[-2])
        place[-2] = int(tokens[place[-2] % len(tokens)])
    if kind == EVERY_KEY:
        array[(*place[:-2], slice(None), place[-1])] = -np.inf
    else:
        array[tuple(place)] = KINDS[kind]
    return array
