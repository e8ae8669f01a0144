"""Leading batch axes as one: for targets that take arrays of exactly four dimensions (`rank = 4`)."""

from collections.abc import Mapping
from math import prod

import numpy as np

from conformance.names import MHA, MHA_VJP
from conformance.vectors.case import Array

RANK = 4
"""The only rank that a target may ask for: one batch axis, heads, length, width."""
BROADCAST = ("mask", "attn_bias")
"""Arrays whose axes may be missing or 1."""
AXES = {
    **dict.fromkeys(("query", "key", "value", "grad_output", "output", "past_key", "past_value"), 3),
    **dict.fromkeys(("present_key", "present_value", "weights"), 3),
    "lse": 2,
    "grad_lse": 2,
    **dict.fromkeys(("q_segments", "kv_segments"), 1),
    **dict.fromkeys(("q_offset", "kv_lengths"), 0),
}
"""Array -> how many axes it has behind the batch axes."""
PROJECTED = ("query", "key", "value", "grad_output", "output")
"""Arrays of a layer that have no heads axis."""


def flattened(operation: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The operands with one batch axis, which is added where they have none; what cannot be, as it is."""
    if "query" not in inputs:
        return dict(inputs)
    batch = _batch(operation, inputs)
    return {name: _flat(operation, name, array, batch) for name, array in inputs.items()}


def restored(operation: str, name: str, array: Array, inputs: Mapping[str, Array]) -> Array:
    """An output with the batch axes of the operands that were given before they were flattened."""
    if "query" not in inputs or array.ndim == 0:
        return array
    if operation.endswith("_vjp") and name in inputs:
        return _gradient(array, inputs[name], _batch(operation, inputs))
    batch, own = _batch(operation, inputs), _own(operation, name)
    if own is None or array.ndim != own + 1 or array.shape[0] != prod(batch):
        return array  # which the judge refuses by its shape
    return array.reshape(*batch, *array.shape[1:])


def _batch(operation: str, inputs: Mapping[str, Array]) -> tuple[int, ...]:
    query = inputs["query"]
    return query.shape[: max(query.ndim - (_own(operation, "query") or 0), 0)]


def _own(operation: str, name: str) -> int | None:
    """How many axes an array has behind the batch axes; None of one that has no batch axes."""
    if operation in (MHA, MHA_VJP) and name in PROJECTED:
        return 2
    return AXES.get(name)


def _flat(operation: str, name: str, array: Array, batch: tuple[int, ...]) -> Array:
    if name in BROADCAST:
        return _flat_mask(array, batch)
    own = _own(operation, name)
    if own is None or array.ndim < own or (own == 0 and array.shape != batch):
        return array
    if own == 1 and array.ndim == 1 and batch:  # numbers that serve every entry
        return array
    lead = array.shape[: array.ndim - own]
    return array.reshape(prod(lead), *array.shape[array.ndim - own :])


def _flat_mask(array: Array, batch: tuple[int, ...]) -> Array:
    """A mask or bias with four axes; its heads, queries and keys stay as they are, 1 included."""
    if array.ndim == 2:
        return array[None, None]
    lead, own = array.shape[:-3], array.shape[-3:]
    if array.ndim != len(batch) + 3 or any(a not in (1, b) for a, b in zip(lead, batch, strict=True)):
        return array  # a wrong call, which the target is to refuse
    if all(axis == 1 for axis in lead):
        return array.reshape(1, *own)
    return np.broadcast_to(array, (*batch, *own)).reshape(prod(batch), *own)


def _gradient(array: Array, given: Array, batch: tuple[int, ...]) -> Array:
    """A gradient in the shape of its argument; summed over the batch axes that the argument was repeated along."""
    if array.size == given.size:
        return array.reshape(given.shape)
    own = given.shape[-3:]
    if given.ndim != len(batch) + 3 or array.shape != (prod(batch), *own):
        return array
    repeated = tuple(n for n, axis in enumerate(given.shape[:-3]) if axis == 1)
    summed = array.reshape(*batch, *own).astype(np.float64).sum(axis=repeated, keepdims=True)
    return summed.astype(array.dtype)
