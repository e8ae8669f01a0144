"""A case as the steps of the reference take it."""

from collections.abc import Mapping
from typing import Any

from conformance.defects.call import Call


def call_of(operation: str, operands: Mapping[str, Any], options: Mapping[str, Any]) -> Call:
    """The call of some arrays and of the options of a case, which holds as a list what is a pair."""
    pairs: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in options.items()}
    return Call(operation, **operands, **pairs)
