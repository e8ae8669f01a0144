"""Partial results that are merged: one stacked array in a case and on the line, a list of arrays in a Python call."""

from collections.abc import Mapping
from typing import Any

from conformance.names import MERGE
from conformance.vectors.case import Array

STACKED = ("outputs", "lses")
"""Operands of merge_attention: the partial results are their first axis."""


def apart(operation: str, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """The operands of a call, of a merge each partial result under a name of its own, such as `outputs[1]`."""
    if operation != MERGE:
        return inputs
    found = {
        f"{name}[{i}]": part for name in STACKED if name in inputs for i, part in enumerate(inputs[name])
    }
    return {**found, **{name: array for name, array in inputs.items() if name not in STACKED}}


def together(operation: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, of a merge its partial results as two lists."""
    if operation != MERGE:
        return dict(given)
    lists: dict[str, Any] = {name: [] for name in STACKED}
    for name, array in given.items():
        stem, bracket, _ = name.partition("[")
        if bracket:
            lists[stem].append(array)
        else:
            lists[name] = array
    return lists
