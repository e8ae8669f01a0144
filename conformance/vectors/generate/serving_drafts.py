"""Drafts of the operations that are defined by reduction; operands not given are drawn from a stream named by the ID."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.names import PACKED
from conformance.vectors.case import Array
from conformance.vectors.generate.draft import FIELDS, Draft
from conformance.vectors.generate.draws import Draws


def pack(
    id: str,  # noqa: A002 - the word that the index and the reports use
    note: str,
    *covers: str,
    q_lens: Sequence[int] = (2, 3),
    kv_lens: Sequence[int] = (3, 4),
    heads: int = 3,
    kv_heads: int | None = None,
    d_k: int = 4,
    d_v: int | None = None,
    spare: tuple[int, int] = (0, 0),  # rows of query, and of key and value, that belong to no part
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """A packed call of parts of these lengths, with NaN in the rows of no part."""
    draws = Draws(like or id)
    groups, width = kv_heads or heads, d_v or d_k
    t_q, t_k = sum(q_lens), sum(kv_lens)
    inputs = {
        "query": filled(draws.gauss(heads, t_q, d_k, bits=bits), 1, spare[0]),
        "key": filled(draws.gauss(groups, t_k, d_k, bits=bits), 1, spare[1]),
        "value": filled(draws.gauss(groups, t_k, width, bits=bits), 1, spare[1]),
        "q_starts": starts(q_lens),
        "kv_starts": starts(kv_lens),
    }
    return served(id, note, covers, PACKED, inputs, given)


def starts(lengths: Sequence[int]) -> Array:
    """The begin of each part, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))]).astype(np.int64)


def filled(array: Array, axis: int, count: int) -> Array:
    """The array with so many rows of NaN behind it."""
    shape = [*array.shape]
    shape[axis] = count
    return np.concatenate([array, np.full(shape, np.nan)], axis)


def served(
    name: str,
    note: str,
    covers: tuple[str, ...],
    operation: str,
    inputs: dict[str, Array],
    given: dict[str, Any],
) -> Draft:
    """Arrays among what was given replace or join the inputs; the rest are options or fields of the draft."""
    fields = {key: given.pop(key) for key in FIELDS if key in given}
    inputs = inputs | {key: value for key, value in given.items() if isinstance(value, np.ndarray)}
    options = {key: value for key, value in given.items() if not isinstance(value, np.ndarray)}
    return Draft(name, note, covers, operation, inputs, options, **fields)
