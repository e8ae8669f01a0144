"""Where in a call its worst element stands: what a smaller call keeps first."""

import numpy as np

from conformance.exploring.trial import Tried
from conformance.names import PACKED
from conformance.vectors.case import query_axis


def entry(tried: Tried) -> int:
    """The batch entry of the worst element; 0 where it has none."""
    row, case, recipe = tried.row, tried.case, tried.recipe
    if row is None or row.worst is None or case is None or row.worst.output not in case.expected:
        return 0
    if recipe.operation == PACKED:
        starts = case.inputs["q_starts"]
        token = row.worst.index[1] if len(row.worst.index) > 1 else 0
        return int(np.clip(np.searchsorted(starts, token, side="right") - 1, 0, recipe.entries - 1))
    if recipe.served and row.worst.output not in ("output", "lse"):
        return 0
    index = row.worst.index[: len(recipe.batch)]
    if len(index) < len(recipe.batch) or row.worst.output.startswith(("w_", "b_", "sinks")):
        return 0
    flat = 0
    for size, at in zip(recipe.batch, index, strict=True):
        flat = flat * size + min(at, size - 1)
    return flat


def query(tried: Tried) -> int:
    """The query of the worst element; 0 where it has none."""
    row = tried.row
    if row is None or row.worst is None or row.worst.output not in ("output", "weights", "lse", "query"):
        return 0
    index = row.worst.index
    return min(index[query_axis(row.worst.output, len(index))], tried.recipe.q_len - 1)
