"""A call as a user makes it, with arrays of any library, brought to inputs and options as a case has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.checks import CHECKS
from conformance.dtypes import dtype_name
from conformance.names import BIASES, DTYPES, MHA, MHA_VJP, OPERATIONS, OPTIONS, SDPA_VJP, SERVING, WEIGHTS
from conformance.oracle.reading import read_operand
from conformance.oracle.rows import afforded, of_row, spread
from conformance.oracle.served import named, read
from conformance.oracle.wanted import HINTS, wanted
from conformance.running.suggestions import nearest
from conformance.vectors.case import Array

GRAD_LSE = "grad_lse"
ARRAYS = (
    *("mask", "attn_bias", "kv_lengths", "q_segments", "kv_segments", "sinks", "past_key", "past_value"),
    *(*WEIGHTS, *BIASES, GRAD_LSE),
)
"""Options that are arrays; q_offset may be one."""


@dataclass(frozen=True)
class Given:
    """One call."""

    operation: str
    inputs: Mapping[str, Array]
    options: Mapping[str, Any]
    dtype: str
    dtype_of: Mapping[str, str]
    rows: tuple[int, ...] | None  # None: every one
    q_len: int
    work: int  # products of two numbers that the judged rows take

    @property
    def said(self) -> str:
        """The call in a line."""
        words = [f"{name} {dtype_name(x.dtype)} {x.shape}" for name, x in self.inputs.items()]
        words += [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{self.operation}: {', '.join(words)}"

    @property
    def judged_rows(self) -> tuple[int, ...]:
        """The query rows that are judged."""
        return tuple(range(self.q_len)) if self.rows is None else self.rows


def given(
    operation: str,
    query: Any,
    key: Any,
    value: Any,
    grad_output: Any,
    options: Mapping[str, Any],
    rows: int | list[int] | tuple[int, ...] | None,
) -> Given:
    """Reads and checks a call.

    Raises:
        TypeError: an argument is no array or has a wrong dtype, or an option is unknown.
        ValueError: anything else is wrong.
    """
    if operation in SERVING:
        return _served(operation, (query, key, value), grad_output, options, rows)
    backward = _check_names(operation, grad_output, options)
    if missing := [name for name, x in (("key", key), ("value", value)) if x is None]:
        raise TypeError(f"{operation} needs {' and '.join(missing)}")
    by_name = {"query": query, "key": key, "value": value}
    by_name |= {"grad_output": grad_output} if backward else {}
    by_name |= {name: options[name] for name in ARRAYS if options.get(name) is not None}
    kept = {name: x for name, x in options.items() if name not in ARRAYS and x is not None}
    if hasattr(kept.get("q_offset"), "ndim") and kept["q_offset"].ndim:
        by_name["q_offset"] = kept.pop("q_offset")
    inputs = {name: read_operand(name, x) for name, x in by_name.items()}
    dtype = dtype_name(inputs["query"].dtype)
    if dtype not in DTYPES:
        raise TypeError(f"query has dtype {dtype} but operands need one of {', '.join(DTYPES)} (DTYPE-2)")
    kept = {name: x for name, x in kept.items() if not (name.startswith(("return_", "is_")) and x is False)}
    call = _checked(operation, inputs, kept)
    if "window" in kept:
        kept["window"] = [None if x is None else int(x) for x in kept["window"]]
    kept = {name: x.item() if isinstance(x, np.generic) else x for name, x in kept.items()}
    judged = _rows(rows, call, dtype, backward)
    of_bias = dtype_name(inputs["attn_bias"].dtype) if "attn_bias" in inputs else dtype
    return Given(
        operation=operation,
        inputs=inputs,
        options=kept,
        dtype=dtype,
        dtype_of={} if of_bias == dtype else {"attn_bias": of_bias},
        rows=judged,
        q_len=call.q_len,
        work=(call.q_len if judged is None else len(judged)) * of_row(call) * (call.d_k + call.d_v),
    )


def _served(
    operation: str,
    arrays: tuple[Any, ...],
    grad_output: Any,
    options: Mapping[str, Any],
    rows: int | list[int] | tuple[int, ...] | None,
) -> Given:
    """A call of an operation that is defined by reduction."""
    if grad_output is not None:
        raise ValueError(f"grad_output is given but {operation} has no gradients")
    if rows is not None:
        raise ValueError(f"rows={rows!r} but every row of {operation} is judged: leave it out")
    options = {name: x for name, x in options.items() if name != GRAD_LSE or x is not None}
    inputs, kept = read(operation, named(operation, arrays, options))
    dtype = dtype_name(
        next(x.dtype for x in inputs.values() if x.dtype.kind == "f" or dtype_name(x.dtype) in DTYPES)
    )
    of_bias = dtype_name(inputs["attn_bias"].dtype) if "attn_bias" in inputs else dtype
    return Given(
        operation=operation,
        inputs=inputs,
        options=kept,
        dtype=dtype,
        dtype_of={} if of_bias == dtype else {"attn_bias": of_bias},
        rows=None,
        q_len=next(iter(inputs.values())).shape[-2],
        work=0,  # there is no first look at these
    )


def _check_names(operation: str, grad_output: Any, options: Mapping[str, Any]) -> bool:
    """Whether gradients are asked for."""
    if operation not in OPERATIONS:
        raise ValueError(
            f"operation={operation!r} is not one of {', '.join(OPERATIONS)}{nearest(str(operation), OPERATIONS)}"
        )
    layer, backward = operation in (MHA, MHA_VJP), operation in (SDPA_VJP, MHA_VJP)
    known = (*OPTIONS, *WEIGHTS, *BIASES) if layer else OPTIONS
    known = (*known, GRAD_LSE)
    if not backward and options.get(GRAD_LSE) is not None:
        raise ValueError(
            f"{GRAD_LSE} is given but {operation} has no gradients: say operation={operation + '_vjp'!r}"
        )
    for name in options:
        if name not in known:
            hint = f"; {HINTS[name]}" if name in HINTS else nearest(name, known)
            raise TypeError(f"{operation} has no option {name!r}{hint}")
    if backward != (grad_output is not None):
        raise ValueError(
            f"{operation} needs grad_output (GRAD-14)"
            if backward
            else f"grad_output is given but {operation} has no gradients: say operation={operation + '_vjp'!r}"
        )
    missing = [name for name in WEIGHTS if options.get(name) is None] if layer else []
    if missing:
        raise ValueError(f"{operation} needs {', '.join(missing)} (PROJ-6)")
    return backward


def _checked(operation: str, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> Call:
    """The call, where nothing in it is wrong (spec/errors.md)."""
    shapes = ", ".join(f"{name} is {dtype_name(x.dtype)} {x.shape}" for name, x in inputs.items())
    call = Call(operation, **inputs, **options)
    for check in CHECKS:
        try:
            wrong = check.wrong(call)
        except (AttributeError, IndexError, TypeError):  # such as a window that has no length
            wrong = True
        if wrong:
            if line := wanted(check.name, call):
                raise check.error(f"{line} ({check.requirement})")
            told = "".join(f", {name}={value!r}" for name, value in options.items())
            raise check.error(f"the call is wrong in its {check.name} ({check.requirement}): {shapes}{told}")
    return call


def _rows(
    rows: int | list[int] | tuple[int, ...] | None, call: Call, dtype: str, backward: bool
) -> tuple[int, ...] | None:
    q_len = call.q_len
    if rows is None:
        most = afforded(call, dtype, backward)
        return None if most >= q_len else spread(q_len, most)
    if isinstance(rows, int) and not isinstance(rows, bool):
        if rows < 1:
            raise ValueError(
                f"rows={rows} but at least 1 has to be judged; None judges every one that can be afforded"
            )
        return None if rows >= q_len else spread(q_len, rows)
    try:
        listed: Any = rows
        chosen = tuple(sorted({int(row) + (q_len if row < 0 else 0) for row in listed}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"rows={rows!r} but an int, a list of query rows, or None is wanted") from error
    if not chosen:
        raise ValueError("rows is empty: give a list of rows, or None")
    if not all(0 <= row < q_len for row in chosen):
        raise ValueError(f"rows={rows!r} but the call has the query rows 0 to {q_len - 1}")
    return None if len(chosen) == q_len else chosen
