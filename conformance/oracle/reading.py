"""Arrays and dtypes of any library, read for one call; what cannot be read is refused in a line that says why."""

import math
from typing import Any

import numpy as np

from conformance.dtypes import dtype_name
from conformance.names import DTYPES, OPERANDS
from conformance.running.arrays import UnreadableError, describe, take
from conformance.running.text_limits import first_line
from conformance.vectors.case import Array

FLOATING = (*OPERANDS, "grad_output", "grad_lse", "attn_bias")
"""Arguments whose dtype counts, so that a list will not do."""


def dtype_asked(dtype: Any) -> str:
    """The name of a dtype that is given by name or as an object of any library.

    Raises:
        ValueError: it is none that operands may have.
    """
    if isinstance(dtype, str):
        name = dtype
    else:
        try:
            name = dtype_name(np.dtype(dtype))
        except (TypeError, ValueError):  # of torch, say
            name = str(dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise ValueError(f"dtype={dtype!r} but one of {', '.join(DTYPES)} is wanted")
    return name


def read_operand(name: str, x: Any) -> Array:
    """An argument as an array in the byte order of this machine.

    Raises:
        TypeError: it cannot be read; the text says what it is and what is wanted.
    """
    try:
        _check(x, listed=name in FLOATING)
        return _native(take(x, math.inf))
    except _NamedError as error:
        raise TypeError(f"{name} {error} (DTYPE-2)") from None
    except Exception as error:
        if not _has_dtype(x):
            what = f"an array of {x.dtype}" if isinstance(x, np.ndarray) else describe(x)
            raise TypeError(f"{name} is {what} but needs an array of numbers (DTYPE-2)") from error
        wanted = "bool, dense" if name == "mask" else "integers, dense"
        wanted = "float64, float32, float16 or bfloat16, dense" if name in FLOATING else wanted
        raise TypeError(f"{name} is {_typed(x)}: give {wanted}{_why(x, error)} (DTYPE-2)") from error


def read_result(name: str, x: Any) -> Array:
    """A result as an array in the byte order of this machine.

    Raises:
        UnreadableError: it cannot be read; the text says what it is and what is wanted.
    """
    try:
        _check(x, listed=True)
        return _native(take(x, math.inf))
    except UnreadableError as error:
        raise UnreadableError(f"{name} {error}") from error
    except Exception as error:
        if not _has_dtype(x):
            raise UnreadableError(f"{name} cannot be read as an array: {first_line(error)}") from error
        raise UnreadableError(f"{name} is {_typed(x)}: give a dense array{_why(x, error)}") from error


class _NamedError(UnreadableError):
    """What is wrong is told in full."""


def _check(x: Any, *, listed: bool) -> None:
    if listed and isinstance(x, list | tuple):
        raise _NamedError(f"is {describe(x)}, whose dtype is unknown: give an array")
    if isinstance(x, np.ma.MaskedArray):
        raise _NamedError("is a masked array: give a plain one, and what is hidden as `mask`")
    if any(of.__name__ == "Tracer" and of.__module__.startswith("jax") for of in type(x).__mro__):
        raise _NamedError("is a JAX tracer, which has no numbers: call it outside jax.jit")
    if getattr(x, "is_meta", False) is True:
        raise _NamedError("is on the device meta, where it has no numbers: give a tensor that has some")


def _native(x: Array) -> Array:
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _has_dtype(x: Any) -> bool:
    return hasattr(x, "dtype") and not isinstance(x, np.ndarray)


def _typed(x: Any) -> str:
    return f"a {x.dtype} {type(x).__name__}"


def _why(x: Any, error: Exception) -> str:
    """The library's own reason, where the dtype is none."""
    return f" ({first_line(error)})" if str(x.dtype).rpartition(".")[2] in (*DTYPES, "bool") else ""
