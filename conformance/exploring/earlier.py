"""The calls that go before a call: what they leave behind must not be seen in it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.exploring import parts, smaller
from conformance.exploring.arrays import arrays, changed, options
from conformance.exploring.recipe import NUMBERS, Recipe
from conformance.vectors.case import Array

SAME, SHAPE = "same", "shape"
Call = tuple[dict[str, Array], dict[str, Any]]
"""Arrays by argument name, and what is no array."""


def earlier(recipe: Recipe, inputs: Mapping[str, Array]) -> list[Call]:
    """The calls before: the same one; one with something else in it; or of this shape, and then of a longer one."""
    again, now = recipe.again, options(recipe)
    if not again:
        return []
    if again == SAME:
        return [(dict(inputs), now)]
    if again == SHAPE:
        plain = parts.turned(replace(recipe, again="", stream=recipe.stream + 1))
        longer = smaller.of_keys(plain, plain.kv_len + 1 + plain.stream % 7)
        return [(arrays(each), options(each)) for each in (plain, longer)]
    if again in (*NUMBERS, "sinks"):
        return [(changed(recipe, inputs), now)]
    if again in inputs:
        return [({**inputs, again: _other(again, inputs[again], recipe.kv_len, recipe.served)}, now)]
    if again == "is_causal":
        without = smaller.without(replace(recipe, again=""), again)
        return [(arrays(without), options(without))]
    return [(dict(inputs), {**now, again: _value(now[again])})]


def _other(name: str, array: Array, kv_len: int, served: bool) -> Array:
    """Another mask, bias or lengths."""
    if name == "kv_lengths" and served:  # a page for one more key may not be there
        return np.maximum(array - 1, 0)
    if name == "kv_lengths":
        return np.where(array < kv_len, array + 1, np.maximum(array - 1, 0))
    rolled = np.roll(array, 1, axis=-1)
    if not np.array_equal(rolled, array):
        return rolled
    if array.dtype.kind == "i":  # numbers of segments
        return array ^ 1
    return ~array if array.dtype.kind == "b" else np.where(array == 1.0, 2.0, 1.0)


def _value(value: Any) -> Any:
    """Another window, scale or softcap."""
    if isinstance(value, list):
        left, right = value
        return [0 if left is None else left + 1, right]
    return 2.0 * value or 0.5
