"""Arrays to and from a target's library: NumPy, torch, JAX, array-api-strict, or any other by DLPack.

Nothing is imported before a target asks for it, and then by name.
"""

import importlib
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from conformance.dtypes import NUMPY_DTYPES, dtype_name
from conformance.errors import UsageError
from conformance.running.suggestions import nearest
from conformance.running.text_limits import first_line, shorten
from conformance.vectors.case import Array

MOST_BYTES = 2**25
"""How much a call may return: far more than any case expects, and less than fills a machine."""

LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax", "array-api-strict": "array_api_strict"}
"""Import name of each known array type; any other array type is an import name itself."""


class UnreadableError(Exception):
    """A returned object that is no array; the text says what it is."""


# Memory

SHARED = "shared"
"""An operand that is the very array which the query is; `call` hands that in."""
AGAIN = "again"
"""An operand that lies where it lay in the call before, with the numbers of this one; `call` sees to it."""


def lay_out(array: Array, how: str | None) -> Array:
    """The same values, lying in memory as a case wants them; writable in C order by default."""
    if how in (None, SHARED, AGAIN):
        return np.array(array, order="C")
    if how == "transposed":
        return np.ascontiguousarray(array.T).T
    if how == "reversed":
        return np.flip(np.ascontiguousarray(np.flip(array)))
    if how == "readonly":
        frozen = np.array(array, order="C")
        frozen.flags.writeable = False
        return frozen
    if how == "unaligned":
        shifted: Array = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        shifted[...] = array
        return shifted
    if how == "heads" and array.ndim > 2:  # lengths before heads in memory
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    if how in ("heads", "packed", "stepped") and array.ndim:
        return _among_others(array, 2 if how == "stepped" else 1)
    if how == "behind":
        behind = _strange((2 * array.size,), array.dtype)[array.size :].reshape(array.shape)
        behind[...] = array
        return behind
    if how == "spread":
        return _spread(array)
    raise ValueError(f"unknown memory layout {how!r}")


def _among_others(array: Array, step: int) -> Array:
    """A slice of a wider array whose other numbers are none, where the dtype has such."""
    width = array.shape[-1]
    wide = _strange((*array.shape[:-1], step * width + 2), array.dtype)
    inside = wide[..., 1 : 1 + step * width : step]
    inside[...] = array
    return inside


def _strange(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Numbers that are none where the dtype has such, and wrong ones else."""
    return np.full(shape, np.nan if dtype.kind not in "bi" else 1, dtype)


def _spread(array: Array) -> Array:
    """Strides of zero along every axis of equal numbers; what lies behind is none of the operand's."""
    equal = [n > 1 and bool((array == array.take([0], axis)).all()) for axis, n in enumerate(array.shape)]
    whole = _strange(array.shape, array.dtype)
    first = whole[tuple(slice(0, 1) if one else slice(None) for one in equal)]
    first[...] = array[tuple(slice(0, 1) if one else slice(None) for one in equal)]
    strides = [0 if one else stride for one, stride in zip(equal, whole.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(first, array.shape, strides)


# To the target


def library(array_type: str) -> ModuleType:
    """The array library of an array type.

    Raises:
        UsageError: it cannot be imported.
    """
    name = LIBRARIES.get(array_type, array_type)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if array_type in LIBRARIES:
            raise UsageError(
                f"array_type {array_type!r} needs {name}, which cannot be imported: {error}; "
                f"install it for {sys.executable}, which runs this"
            ) from error
        hint = nearest(array_type, LIBRARIES) or f"; known are {', '.join(LIBRARIES)}"
        raise UsageError(
            f"array_type {array_type!r} is not a library that can be imported by {sys.executable}, "
            f"which runs this: {error}{hint}"
        ) from error


def giver(array_type: str, device: str | None) -> Callable[[Array], Any]:
    """What turns a NumPy array into the target's, with its strides where the library can.

    Raises:
        UsageError: the library is missing, or does not have the device.
    """
    module = library(array_type)
    give = {
        "numpy": _to_numpy,
        "torch": _to_torch,
        "jax": _to_jax,
        "array-api-strict": _to_strict,
    }.get(array_type, _by_dlpack)
    try:
        give(module, np.zeros(1, np.float32), device)
    except Exception as error:
        where = f" on device {device!r}" if device else ""
        raise UsageError(f"{array_type} makes no array{where}: {first_line(error)}") from error
    return lambda array: give(module, array, device)


def _to_numpy(module: Any, array: Array, device: str | None) -> Any:
    if device not in (None, "cpu"):
        raise ValueError("NumPy has the device 'cpu' only")
    return array


def _to_torch(module: Any, array: Array, device: str | None) -> Any:
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has neither read-only tensors nor negative strides
    if array.dtype == ml_dtypes.bfloat16:
        tensor = module.from_numpy(array.view(np.int16)).view(module.bfloat16)
    else:
        tensor = module.from_numpy(array)
    return tensor if device is None else tensor.to(device)


def _to_jax(module: Any, array: Array, device: str | None) -> Any:
    if array.dtype == np.float64 and not module.config.read("jax_enable_x64"):
        module.config.update("jax_enable_x64", True)
    if array.dtype == np.int64 and np.any(array != array.astype(np.int32)) and hasattr(module, "enable_x64"):
        with module.enable_x64(True):  # else it keeps the lower half of each number, without a word
            return _placed_by_jax(module, array, device)
    return _placed_by_jax(module, array, device)


def _placed_by_jax(module: Any, array: Array, device: str | None) -> Any:
    if device is None:
        return module.device_put(array.copy())  # `asarray` compiles a copy for each shape
    platform, _, index = device.partition(":")
    return module.device_put(array, module.devices(platform)[int(index or 0)])


def _to_strict(module: Any, array: Array, device: str | None) -> Any:
    return module.asarray(array) if device is None else module.asarray(array, device=module.Device(device))


def _by_dlpack(module: Any, array: Array, device: str | None) -> Any:
    options = {} if device is None else {"device": device}
    try:
        return module.from_dlpack(array, **options)
    except Exception:  # no from_dlpack, or a dtype or layout that DLPack or the library cannot express
        make = getattr(module, "asarray", None) or module.array
        return make(array, **options)


# From the target


def take(returned: Any, most: float = MOST_BYTES) -> Array:
    """The NumPy array of anything that NumPy can read, a torch tensor or a device array.

    Raises:
        UnreadableError: it is no array, or has more than so many bytes.
    """
    if isinstance(returned, np.ndarray):
        array = np.asarray(returned)  # not a subclass: comparisons of masked arrays, say, are masked too
    elif type(returned).__module__.partition(".")[0] == "torch":
        array = _from_torch(returned, most)
    else:
        array = _read(returned)
    if array.dtype.kind in "OUSMm":
        raise UnreadableError(
            f"is {describe(returned)}, which NumPy cannot read as numbers; return an array, or say how by to_numpy"
        )
    check_size(array.nbytes, array.shape, array.dtype, most)
    return array


def check_size(size: int, shape: Any, dtype: Any, most: float = MOST_BYTES) -> None:
    """Refuses what no case expects, before it is copied.

    Raises:
        UnreadableError: it has too many bytes.
    """
    if size > most:
        raise UnreadableError(
            f"has shape {shorten(str(tuple(shape)), 100)} and dtype {dtype}, {size / 2**20:.0f} MiB; "
            f"no case expects more than {most // 2**20} MiB"
        )


def _from_torch(tensor: Any, most: float) -> Array:
    module: Any = importlib.import_module("torch")
    if not isinstance(tensor, module.Tensor):
        raise UnreadableError(f"is {describe(tensor)}, no tensor")
    dtype = str(tensor.dtype).removeprefix("torch.")
    check_size(tensor.numel() * tensor.element_size(), tensor.shape, dtype, most)
    tensor = tensor.detach().cpu()
    if tensor.dtype == module.bfloat16:
        return np.asarray(tensor.contiguous().view(module.int16).numpy()).view(NUMPY_DTYPES["bfloat16"])
    return np.asarray(tensor.resolve_conj().resolve_neg().numpy())


def _read(returned: Any) -> Array:
    """By NumPy's own means, else by DLPack: an object that it knows nothing of is no error of NumPy's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = np.asarray(returned)
        if array.dtype.kind != "O" or not hasattr(returned, "__dlpack__"):
            return array
    except (TypeError, ValueError, BufferError):
        if not hasattr(returned, "__dlpack__"):
            raise
    try:
        return np.asarray(np.from_dlpack(returned, device="cpu"))
    except TypeError:  # NumPy before 2.1, or an object, that takes no device
        return np.asarray(np.from_dlpack(returned))


def describe(thing: Any) -> str:
    """An object in a few words: its dtype for an array, its type else."""
    if isinstance(thing, np.ndarray) and thing.dtype.kind != "O":
        return f"an array of {dtype_name(thing.dtype)}"
    name = shorten(type(thing).__name__, 100) or "thing"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
