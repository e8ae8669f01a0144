"""Calls of many batch entries: all are asked for, some are judged."""

from collections.abc import Mapping
from dataclasses import replace

from conformance.exploring.counter import Dice
from conformance.exploring.recipe import Recipe
from conformance.judging.verdict import Row
from conformance.vectors.case import Array

MANY = 128
"""Entries up to which each is judged."""
JUDGED = 24
BESIDE = (1, 2, 32, 64, 128, 256, 1024, 4096, 32_768, 65_536)
"""Counts at which programs go wrong: the entries before and behind are judged."""
SHARED = ("sinks", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")


def judged_entries(recipe: Recipe) -> tuple[int, ...] | None:
    """The entries that are judged; None for all."""
    count = recipe.entries
    if count <= MANY or len(recipe.batch) != 1 or _summed(recipe) or recipe.served:
        return None
    edges = {n + more for n in BESIDE for more in (-1, 0)} | {0, count - 1}
    dice = Dice("entries", recipe.stream, count)
    return tuple(
        sorted({n for n in edges if n < count} | {dice.below(count) for _ in range(JUDGED - len(edges) // 2)})
    )


def _summed(recipe: Recipe) -> bool:
    """Whether some gradient is a sum over all entries, of which a part says nothing."""
    bias = bool(recipe.bias) and "b" not in recipe.bias.partition("-")[0]
    return recipe.gradients and (recipe.layer or recipe.sinks or bias)


def of_entries(arrays: Mapping[str, Array], entries: tuple[int, ...], count: int) -> dict[str, Array]:
    """Some entries of every array that has a batch axis of its own; a mask of rank 2 has none."""
    return {
        name: array[list(entries)]
        if name not in SHARED and array.shape[:1] == (count,) and _batched(name, array)
        else array
        for name, array in arrays.items()
    }


def _batched(name: str, array: Array) -> bool:
    if name.endswith("_segments"):
        return array.ndim == 2
    return array.ndim != 2 or name not in ("mask", "attn_bias")


def placed(row: Row, entries: tuple[int, ...]) -> Row:
    """The row with the number of the entry in the whole call."""
    if row.worst is None or not row.worst.index or row.worst.index[0] >= len(entries):
        return row
    first, *rest = row.worst.index
    index = (entries[first], *rest)
    told = row.message.replace(f"[{first}, ", f"[{entries[first]}, ", 1)
    return replace(row, worst=replace(row.worst, index=index), message=told)
