"""What the Array API leaves open: names of dtypes, the dtype to compute in, values that are not at hand."""

import contextlib
from typing import Any

import array_api_compat

from mha_core.result import Array

DTYPES = ("float64", "float32", "float16", "bfloat16")
"""The dtypes that operands may have, by name: NumPy knows bfloat16 by its name alone."""
EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")


_NAMESPACES: dict[type, Any] = {}
_COMPILERS: dict[type, Any] = {}
_DTYPE_NAMES: dict[tuple[type, Any], str] = {}


def namespace_of(x: Array) -> Any:
    """The namespace of an array's library, found once for each type of array."""
    found = _NAMESPACES.get(type(x))
    if found is None:
        found = _NAMESPACES[type(x)] = array_api_compat.array_namespace(x)
    return found


def dtype_name(dtype: Any) -> str:
    """The name of a dtype in any library: `torch.float32` and `array_api_strict.float32` are `float32`."""
    key = type(dtype), dtype  # dtypes of two libraries are never compared, which some warn about
    found = _DTYPE_NAMES.get(key)
    if found is None:
        name = getattr(dtype, "name", None)
        found = name if isinstance(name, str) else str(dtype).rpartition(".")[2]
        _DTYPE_NAMES[key] = found
    return found


def compute_dtype(xp: Any, dtype: Any) -> Any:
    """The dtype to compute in: float32 for the 16-bit ones, else the operands' own (NUM-3, NUM-4)."""
    return xp.float32 if dtype_name(dtype) in EXACT_IN_FLOAT32 else xp.float64


def cast(xp: Any, x: Array, dtype: Any) -> Array:
    """`x` in another dtype, or itself where it has that dtype."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def cast_bias(xp: Any, bias: Array, dtype: Any) -> Array:
    """`bias` in the dtype to compute in, where a finite number stays finite (ATT-9, DTYPE-3)."""
    if dtype == xp.float32 and dtype_name(bias.dtype) not in EXACT_IN_FLOAT32:
        limit = float(xp.finfo(dtype).max)
        bias = xp.where(xp.isfinite(bias), xp.clip(bias, -limit, limit), bias)
    return cast(xp, bias, dtype)


def device(x: Array) -> Any:
    """Where to create what meets `x`; None where `x` is traced or spread over devices."""
    where = array_api_compat.device(x)
    return None if hasattr(where, "device_set") else where  # a JAX sharding fits only arrays of its own rank


def is_traced(xp: Any, x: Array) -> bool:
    """Whether the values of `x` may not be at hand, so that nothing may depend on them."""
    kind = type(x)
    if kind not in _COMPILERS:
        _COMPILERS[kind] = getattr(xp, "compiler", None)
    compiler = _COMPILERS[kind]  # torch.compile hands out ordinary tensors, and says so here
    return array_api_compat.is_lazy_array(x) or (compiler is not None and compiler.is_compiling())


def known_finite(xp: Any, x: Array) -> bool:
    """Whether `x` is seen to hold neither NaN nor Inf; False where that cannot be told."""
    return holds(xp, xp.isfinite(x))


def holds(xp: Any, condition: Array) -> bool:
    """Whether a condition is seen to hold everywhere; False where that cannot be told."""
    if is_traced(xp, condition):
        return False
    try:
        return bool(xp.all(condition))
    except Exception:  # each library refuses in its own way, as torch does under vmap
        return False


def number(x: Any) -> Any:
    """An integer array of one element as Python's int; `x` itself where it is none or cannot be read."""
    if x is None or isinstance(x, int):
        return x
    try:
        return int(x)
    except Exception:  # as above
        return x


def finite(xp: Any, x: Array) -> Array:
    """`x` with 0 where it is not finite: for products with what is 0 there already."""
    return x if known_finite(xp, x) else xp.where(xp.isfinite(x), x, 0.0)


def without_derivative(xp: Any, x: Array) -> Array:
    """`x` to a unit of rounding of 1 or its own, as whole parts, whose derivative is 0.

    A shift that cancels would otherwise add what rounding leaves of the cancellation to a gradient.
    """
    whole, steps = xp.floor(x), 1 / xp.finfo(x.dtype).eps
    return whole + xp.floor((x - whole) * steps) / steps


def quiet(xp: Any) -> contextlib.AbstractContextManager[Any]:
    """No floating-point warnings: NaN and Inf behind a mask are legal and reach nothing (MASK-4)."""
    errstate = getattr(xp, "errstate", None)
    return contextlib.nullcontext() if errstate is None else errstate(all="ignore")
