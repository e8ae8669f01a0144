"""A call of packed, paged, latent or merged attention as a user makes it, brought to inputs and options of a case."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import SERVING_CHECKS
from conformance.dtypes import dtype_name
from conformance.names import (
    DTYPES,
    MERGE,
    OPTIONS_OF,
    POSITIONAL,
    REQUIRED,
    SERVING_OPERANDS,
)
from conformance.oracle.reading import read_operand
from conformance.running.suggestions import nearest
from conformance.vectors.case import Array

INTEGERS = ("q_starts", "kv_starts", "page_table", "kv_lengths", "slots")
ARRAYS = (*SERVING_OPERANDS, *INTEGERS, "query", "key", "value", "lses", "sinks", "mask", "attn_bias")


def named(operation: str, first: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument of a call by its name.

    Raises:
        TypeError: one is unknown, missing or given twice.
    """
    positions = POSITIONAL[operation]
    known = (*positions, *REQUIRED[operation], *OPTIONS_OF[operation])
    given = dict(zip(positions, first, strict=False))
    given = {name: x for name, x in given.items() if x is not None}
    if len(first) > len(positions) and any(x is not None for x in first[len(positions) :]):
        raise TypeError(
            f"{operation} takes the arrays {', '.join(positions)} and no more of them by position"
        )
    for name, x in options.items():
        if name not in known:
            raise TypeError(f"{operation} has no option {name!r}{nearest(name, known)}")
        if name in given:
            raise TypeError(f"{name} is given twice, by position and by name")
        if x is not None:
            given[name] = x
    missing = [name for name in (*positions, *REQUIRED[operation]) if name not in given]
    if missing:
        raise TypeError(f"{operation} needs {', '.join(missing)}")
    return given


def read(operation: str, given: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Inputs and options as a case has them; the lists of a merge are stacked.

    Raises:
        TypeError: an argument is no array, or of a wrong dtype.
        ValueError: anything else is wrong with the call (spec/errors.md).
    """
    arrays = {name: x for name, x in given.items() if name in ARRAYS}
    options = {name: x for name, x in given.items() if name not in ARRAYS and x is not False}
    if np.ndim(options.get("q_offset", 0)):
        arrays["q_offset"] = options.pop("q_offset")
    inputs = {}
    for name, x in arrays.items():
        if operation == MERGE and name in ("outputs", "lses") and isinstance(x, list | tuple):
            parts = [read_operand(f"{name}[{i}]", part) for i, part in enumerate(x)]
            if not parts or len({(part.shape, part.dtype) for part in parts}) > 1:
                told = ", ".join(f"{dtype_name(part.dtype)} {part.shape}" for part in parts) or "nothing"
                raise ValueError(
                    f"{name} holds {told} but arrays of one shape and dtype are wanted (MERGE-6)"
                )
            inputs[name] = np.stack(parts)
        else:
            inputs[name] = read_operand(name, x)
    _check(operation, inputs, options)
    if "window" in options:
        options["window"] = [None if x is None else int(x) for x in options["window"]]
    return inputs, {name: x.item() if isinstance(x, np.generic) else x for name, x in options.items()}


def _check(operation: str, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> None:
    shapes = ", ".join(f"{name} is {dtype_name(x.dtype)} {x.shape}" for name, x in inputs.items())
    call = Served(operation, **inputs, **options)
    dtype = dtype_name(call.first.dtype)
    if dtype not in DTYPES:
        raise TypeError(f"operands have dtype {dtype} but need one of {', '.join(DTYPES)} (DTYPE-2)")
    for check in SERVING_CHECKS:
        try:
            wrong = check.wrong(call)
        except (AttributeError, IndexError, TypeError, ValueError):  # such as a table without axes
            wrong = True
        if wrong:
            told = "".join(f", {name}={x!r}" for name, x in options.items())
            raise check.error(f"the call is wrong in its {check.name} ({check.requirement}): {shapes}{told}")
