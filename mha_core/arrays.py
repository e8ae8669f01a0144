"""What the Array API leaves open: names of dtypes, the dtype to compute in, values that are not at hand."""

import contextlib
from typing import Any

import array_api_compat

from mha_core.result import Array

DTYPES = ("float64", "float32", "float16", "bfloat16")
"""The dtypes that operands may have, by name: NumPy knows bfloat16 by its name alone."""
BEYOND_FLOAT32 = ("float64", "longdouble", "float96", "float128")


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
    name = dtype_name(dtype)
    return dtype if name in ("float64", "float32") else xp.float32


def cast(xp: Any, x: Array, dtype: Any) -> Array:
    """`x` in another dtype, or itself where it has that dtype."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def cast_bias(xp: Any, bias: Array, dtype: Any) -> Array:
    """`bias` in the dtype to compute in, where a finite number stays finite (ATT-9, DTYPE-3)."""
    if dtype == xp.float32 and dtype_name(bias.dtype) in BEYOND_FLOAT32:
        limit = float(xp.finfo(dtype).max)
        bias = xp.where(xp.isfinite(bias), xp.clip(bias, -limit, limit), bias)
    return cast(xp, bias, dtype)


def beside(x: Array) -> dict[str, Any]:
    """Keywords that create an array where `x` is; none where `x` is traced, spread over devices or does not say."""
    try:
        where = array_api_compat.device(x)
    except AttributeError:  # a library of one kind of memory has no devices
        return {}
    sharding = hasattr(where, "device_set")  # JAX's fits only arrays of its own rank
    return {} if sharding else {"device": where}


def _mesh(x: Array) -> Any:
    """The processes that hold parts of `x`, of a library whose arrays say so; else None."""
    return getattr(x, "device_mesh", None)


def is_spread(x: Array) -> bool:
    """Whether parts of `x` are in several processes or on several devices, so that cutting it moves them."""
    sharding = getattr(x, "sharding", None)
    return _mesh(x) is not None or len(getattr(sharding, "device_set", ())) > 1


def arange(xp: Any, start: int, stop: int, like: Array) -> Array:
    """The integers from start up to stop, wherever `like` is, in each process that holds a part of it."""
    counted = xp.arange(start, stop, **beside(like))
    mesh = _mesh(like)
    return counted if mesh is None else type(like).from_local(counted, mesh)


def chunked_as_rows(counted: Array, like: Array) -> Array:
    """One number a row in chunks as the rows of `like`, (..., rows, d): a mask in one piece may not fit into memory."""
    chunks = getattr(like, "chunks", None)
    return counted.rechunk(chunks[-2:-1]) if chunks and sum(chunks[-2]) == counted.shape[0] else counted


def product(xp: Any, x: Array, y: Array) -> Array:
    """`x @ y`, where `x` may have fewer matrices than `y`."""
    if _mesh(y) is not None and x.shape[:-2] != y.shape[:-2]:
        x = x + xp.zeros_like(y[..., :1, :1])  # spread as `y` is, so that no part of `y` moves
    return xp.matmul(x, y)


def is_traced(xp: Any, x: Array) -> bool:
    """Whether the values of `x` may not be at hand, so that nothing may depend on them."""
    if is_spread(x):
        return True
    if array_api_compat.is_lazy_array(x):
        return True
    kind = type(x)
    if kind not in _COMPILERS:
        _COMPILERS[kind] = getattr(xp, "compiler", None)
    compiler = _COMPILERS[kind]  # torch.compile hands out ordinary tensors, and says so here
    return compiler is not None and bool(compiler.is_compiling())


def runs_at_once(x: Any) -> bool:
    """Whether `x` is an array of a kind known to be computed at once, by a library that does not compile now."""
    kind = type(x)
    return kind in _COMPILERS and (_COMPILERS[kind] is None or not _COMPILERS[kind].is_compiling())


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


def writes_in_place(xp: Any, x: Array) -> bool:
    """Whether `x` lies in main memory, where universal functions write what they compute."""
    return hasattr(xp, "errstate") and hasattr(type(x), "__array_interface__")  # of an array it makes a dict


def number(x: Any) -> Any:
    """An integer array of one element as Python's int; `x` itself where it is none or cannot be read."""
    if x is None or isinstance(x, int):
        return x
    try:
        return int(x)
    except Exception:  # as above
        return x


def integers(xp: Any, x: Array) -> Any:
    """An integer array as Python's ints, in lists where it has axes; None where they cannot be read."""
    compiler = getattr(xp, "compiler", None)
    if compiler is not None and compiler.is_compiling():
        return None
    try:
        return x.tolist() if hasattr(x, "tolist") else _listed(x)
    except Exception:  # as above
        return None


def _listed(x: Array) -> Any:
    """The same of a library whose arrays do not say so themselves."""
    return [_listed(x[i, ...]) for i in range(x.shape[0])] if x.shape else int(x)


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
