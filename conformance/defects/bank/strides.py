"""Operands that are read as if they lay elsewhere than their strides and their offset say (IND-2)."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from conformance.defects.bank.independence import each_operand
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.names import MHA_VJP, SDPA_VJP
from conformance.vectors.case import Array

_FEATURES = {
    "mask": "mask",
    "attn_bias": "attn_bias",
    "kv_lengths": "kv_lengths",
    "q_offset": "q_offset",
    "sinks": "sinks",
    "past_key": "cache",
    "past_value": "cache",
}
_OPERANDS = ("query", "key", "value", "grad_output", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")


def _with(x: Any, strides: tuple[int, ...]) -> Any:
    """An array read by other strides, where that leads to nothing beyond the memory that it is a part of."""
    root = _root(x)
    first, last = (
        x.ctypes.data,
        x.ctypes.data + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)),
    )
    begin = root.ctypes.data
    inside = root.flags.c_contiguous and begin <= first and last + x.itemsize <= begin + root.nbytes
    return (
        np.lib.stride_tricks.as_strided(x, strides=strides) if inside and min(strides, default=0) >= 0 else x
    )


def _root(x: Array) -> Array:
    """The array whose memory another is a part of; `as_strided` puts an object of its own between them."""
    base = x.base if isinstance(x.base, np.ndarray) else getattr(x.base, "base", None)
    return _root(base) if isinstance(base, np.ndarray) else x


def _read(x: Any, strides: Callable[[Array, tuple[int, ...]], tuple[int, ...]]) -> Any:
    if not isinstance(x, np.ndarray) or not x.ndim or not x.size:
        return x
    whole = tuple(x.itemsize * int(np.prod(x.shape[n + 1 :])) for n in range(x.ndim))
    return _with(x, strides(x, whole))


def _contiguous(x: Any) -> Any:
    return _read(x, lambda x, whole: whole)


def _no_step(x: Any) -> Any:
    return _read(x, lambda x, whole: (*x.strides[:-1], x.itemsize))


def _no_zero(x: Any) -> Any:
    return _read(x, lambda x, whole: whole if 0 in x.strides else x.strides)


def _from_begin(x: Any) -> Any:
    """What lies at the beginning of the memory that an array is a part of."""
    if not isinstance(x, np.ndarray) or not x.flags.c_contiguous or (root := _root(x)).dtype != x.dtype:
        return x
    return root.reshape(-1)[: x.size].reshape(x.shape)


def _backward(change: Callable[[Any], Any]) -> Change:
    """Every operand of a call of gradients, changed."""

    def accept(c: Call) -> Call:
        if c.operation not in (SDPA_VJP, MHA_VJP):
            return c
        return replace(c, **{f.name: change(getattr(c, f.name)) for f in fields(c)})

    return {"accept": accept}


DEFECTS = (
    *(Defect(f"contiguous-{operand.replace('_', '-')}", f"Your {operand} is read as if it were contiguous.",
             ("IND-2",), each_operand(_contiguous, operand),
             features=(_FEATURES[operand],) if operand in _FEATURES else ())
      for operand in (*_OPERANDS, *_FEATURES)),
    *(Defect(f"offset-ignored-{operand.replace('_', '-')}",
          f"Your {operand} is read from the beginning of the memory that it is a part of.", ("IND-2",),
          each_operand(_from_begin, operand), features=(_FEATURES[operand],) if operand in _FEATURES else ())
      for operand in ("query", "key", "value", *_FEATURES)),
    Defect("last-step-ignored", "A step along the last axis of an operand is read as one.",
           ("IND-2",), each_operand(_no_step)),
    Defect("last-step-ignored-in-gradients",
           "In gradients a step along the last axis of an operand is read as one.",
           ("IND-2", "GRAD-1"), _backward(_no_step)),
    Defect("strides-of-zero-ignored", "An operand with a stride of zero is read as if it were contiguous.",
           ("IND-2",), each_operand(_no_zero)),
    Defect("offset-ignored-in-gradients",
           "In gradients an operand is read from the beginning of the memory that it is a part of.",
           ("IND-2", "GRAD-1"), _backward(_from_begin)),
)  # fmt: skip
