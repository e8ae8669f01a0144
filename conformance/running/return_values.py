"""The forms in which a target may return its outputs or gradients, each brought to a mapping by name."""

from collections.abc import Mapping
from typing import Any

from conformance.names import APPEND, MERGE, MHA_VJP, OUTPUTS, SDPA_VJP, SERVING
from conformance.running.arrays import UnreadableError, describe
from conformance.running.text_limits import shorten

GRADIENTS = ("query", "key", "value", "attn_bias")
"""What a tuple of gradients holds, in this order."""
PAGES = ("key_pages", "value_pages")
"""What append_to_pages returns as a pair, in this order."""
TUPLE_OF_GRADIENTS = "(d_query, d_key, d_value, d_attn_bias or None)"


class NoSuchGradientError(Exception):
    """The form that was returned has no place for a gradient that is asked for."""


def named(
    returned: Any, operation: str, options: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """What was returned, by the name of the output or, for a gradient, of its argument.

    Raises:
        UnreadableError: it has none of the forms that the operation may return.
        NoSuchGradientError: a tuple of gradients, where that of the sinks is asked for.
    """
    if returned is None:
        raise UnreadableError(f"returned None, wanted {_wanted(operation)}")
    if isinstance(returned, Mapping):
        outputs = dict(returned)
    elif (fields := getattr(returned, "_fields", None)) is not None and isinstance(returned, tuple):
        outputs = dict(zip(fields, returned, strict=True))
    elif operation in (SDPA_VJP, MHA_VJP):
        outputs = _gradients(returned, operation, inputs)
    elif isinstance(returned, tuple) or (isinstance(returned, list) and operation in (APPEND, MERGE)):
        outputs = _pair(returned, operation, options)
    else:
        outputs = {"output": returned}
    return {shorten(str(name), 60): value for name, value in outputs.items() if value is not None}


def _gradients(returned: Any, operation: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if operation != SDPA_VJP or not isinstance(returned, tuple) or len(returned) != len(GRADIENTS):
        raise UnreadableError(f"returned {_told(returned)}, wanted {_wanted(operation)}")
    if "sinks" in inputs:
        raise NoSuchGradientError(f"returns {TUPLE_OF_GRADIENTS}, which has no gradient of sinks")
    return dict(zip(GRADIENTS, returned, strict=True))


def _pair(
    returned: tuple[Any, ...] | list[Any], operation: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    if len(returned) == 2 and options.get("return_weights") and not options.get("return_lse"):
        return dict(zip(("output", "weights"), returned, strict=True))
    if operation == APPEND and len(returned) == 2:
        return dict(zip(PAGES, returned, strict=True))
    if operation in SERVING and len(returned) == 2 and (operation == MERGE or options.get("return_lse")):
        return dict(zip(("output", "lse"), returned, strict=True))
    raise UnreadableError(
        f"returned {_told(returned)}, wanted {_wanted(operation)}, or a mapping or named tuple of "
        f"{', '.join(OUTPUTS)}"
    )


def _wanted(operation: str) -> str:
    if operation == SDPA_VJP:
        return f"a mapping of gradients by argument, or the tuple {TUPLE_OF_GRADIENTS}"
    if operation == APPEND:
        return "the pair (key_pages, value_pages)"
    if operation == MERGE:
        return "the pair (output, lse)"
    return "a mapping of gradients by argument" if operation == MHA_VJP else "an array"


def _told(returned: Any) -> str:
    if not isinstance(returned, tuple):
        return describe(returned)
    return f"a tuple of {len(returned)} ({', '.join(describe(value) for value in returned[:5])})"
