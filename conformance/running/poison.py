"""Freed memory that is no number: a result that is not written everywhere then shows what was there before."""

import math
from collections.abc import Mapping

import numpy as np

from conformance.vectors.case import Array

MOST_BYTES = 2**24
"""Of a block that is filled: what is larger comes from the system, which hands out zeros."""
NO_NUMBER, OTHER = 0xFF, 0x41
"""Bytes that make a NaN in every floating dtype, and those of some number."""

QUERIES, KEYS, VALUES = (
    ("query", "outputs", "new_key"),
    ("key", "key_pages", "latent", "outputs"),
    ("value", "value_pages", "latent", "outputs"),
)
"""Operands by the shape of which results are made; the first that is there."""


def poison(inputs: Mapping[str, Array]) -> None:
    """Fills and frees blocks as large as results of a call are likely to be, so that these get them."""
    query, key, value = (
        next((inputs[name] for name in names if name in inputs), None) for names in (QUERIES, KEYS, VALUES)
    )
    if query is None or key is None or value is None or min(query.ndim, key.ndim, value.ndim) < 2:
        return
    rows = math.prod(query.shape[:-1])
    counts = {rows * value.shape[-1], rows, rows * key.shape[-2], *(x.size for x in (query, key, value))}
    sizes = {
        count * size for count in counts for size in {query.itemsize, 4} if 0 < count * size <= MOST_BYTES
    }
    for size in sizes:
        blocks = [np.full(size, byte, np.uint8) for byte in (OTHER, NO_NUMBER)]
        blocks.pop(0)  # the one that is freed last is handed out first
        blocks.pop()
