"""Operands that lose bits of their dtype before anything is computed (NUM-8), by operand, operation and size."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, at
from conformance.names import BIASES, MHA, MHA_VJP, SDPA, SDPA_VJP, WEIGHTS

_OPTIONS = {"attn_bias": "attn_bias", "sinks": "sinks", "past_key": "cache", "past_value": "cache"}
_OPERANDS = {
    SDPA: ("query", "key", "value", *_OPTIONS),
    SDPA_VJP: ("query", "key", "value", "grad_output", *_OPTIONS),
    MHA: ("query", "key", "value", *WEIGHTS, *BIASES, *_OPTIONS),
    MHA_VJP: (
        "query",
        "key",
        "value",
        "grad_output",
        *WEIGHTS,
        *BIASES[:3],
        *_OPTIONS,
    ),  # none depends on b_o
}
_CALLED = {
    SDPA: "attention",
    SDPA_VJP: "the gradients of attention",
    MHA: "the layer",
    MHA_VJP: "the gradients of the layer",
}
_SHORT = {SDPA: "attention", SDPA_VJP: "attention-gradients", MHA: "layer", MHA_VJP: "layer-gradients"}
_AT_64 = at(("float32", "float16", "bfloat16"), "its operands are no wider than float32")
_AT_16 = at(("float64", "float32", "bfloat16"), "it concerns float16")
_AT_32 = at(("float64", "float16", "bfloat16"), "it concerns float32")


def _rounded(
    to: Any,
    of: Any,
    operation: str,
    names: tuple[str, ...] = (),
    when: Callable[[Call], Any] = lambda c: True,
) -> Change:
    """Some operands of calls in a dtype, or all, rounded to another dtype."""

    def accept(c: Call) -> Call:
        if c.operation != operation or c.dtype != of or not when(c):
            return c
        given = {f.name: getattr(c, f.name) for f in fields(c) if not names or f.name in names}
        with np.errstate(over="ignore"):
            narrow: dict[str, Any] = {
                n: x.astype(to).astype(of)
                for n, x in given.items()
                if isinstance(x, np.ndarray) and x.dtype == of
            }
        return replace(c, **narrow)

    return {"accept": accept}


_IN_FLOAT64 = tuple(
    Defect(
        f"{operand.replace('_', '-')}-float32-in-float64-{_SHORT[operation]}",
        f"In float64 calls of {_CALLED[operation]} {operand} is rounded to float32.",
        ("NUM-8", "NUM-4"),
        _rounded(np.float32, np.float64, operation, (operand,)),
        features=(_OPTIONS[operand],) if operand in _OPTIONS else (),
        unobservable=_AT_64,
    )
    for operation, operands in _OPERANDS.items()
    for operand in operands
)
_IN_FLOAT16 = tuple(
    Defect(
        f"operands-bfloat16-in-float16-{_SHORT[operation]}",
        f"In float16 calls of {_CALLED[operation]} every operand is rounded to bfloat16.",
        ("NUM-8",),
        _rounded(ml_dtypes.bfloat16, np.float16, operation),
        unobservable=_AT_16,
    )
    for operation in _OPERANDS
)
_IN_FLOAT32 = tuple(
    Defect(
        f"operands-bfloat16-{name}-{_SHORT[operation]}",
        f"In float32 calls of {_CALLED[operation]} with {said} every operand is rounded to bfloat16.",
        ("NUM-8",),
        _rounded(ml_dtypes.bfloat16, np.float32, operation, (), when),
        unobservable=_AT_32,
    )
    for operation in _OPERANDS
    for name, said, when in (
        (
            "from-32-columns",
            "32 columns and more",
            lambda c: max(x.shape[-1] for x in (c.query, c.key)) >= 32,
        ),
        ("from-64-keys", "64 keys and more", lambda c: c.kv_len >= 64),
    )
)
DEFECTS = (*_IN_FLOAT64, *_IN_FLOAT16, *_IN_FLOAT32)
