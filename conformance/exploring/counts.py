"""What each batch entry has of its own: how many keys and queries, and where its queries stand."""

import numpy as np

from conformance.exploring.counter import grid, key
from conformance.exploring.recipe import EVERY, Numbers, Recipe
from conformance.vectors.case import Array


def lengths(recipe: Recipe) -> Array:
    """The keys of each entry, [B]."""
    return _numbers(recipe, "kv_lengths", recipe.lengths, recipe.kv_len)


def queries(recipe: Recipe) -> Array:
    """The queries of each entry, [B]."""
    return _numbers(recipe, "queries", recipe.queries, recipe.q_len)


def _numbers(recipe: Recipe, name: str, given: Numbers | None, most: int) -> Array:
    if given is None:
        return np.full(recipe.entries, most, np.int64)
    if given == EVERY:
        words = grid(key(name, recipe.stream), (recipe.entries,))
        return (words % np.uint64(most + 1)).astype(np.int64)
    return np.array(given, np.int64)


def offsets(recipe: Recipe) -> Array:
    """The offset of each entry, [B]; by the rule the last query stands at the last key that exists."""
    if recipe.offset is None or isinstance(recipe.offset, int):
        return np.full(recipe.entries, recipe.offset or 0, np.int64)
    if recipe.offset == EVERY:
        return lengths(recipe) - queries(recipe)
    return np.array(recipe.offset, np.int64)
