"""Arrays made where the target wants them: in blocks, by its own array library, on its device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import NUMPY_DTYPES
from conformance.running.arrays import library
from conformance.running.target import Target
from conformance.vectors.case import Array

BLOCK = 1 << 20
"""Numbers that are made at once."""
KNOWN = ("numpy", "torch", "jax", "array-api-strict")


@dataclass(frozen=True)
class Maker:
    """Makes arrays of one library in one dtype.

    Whatever it is given are whole numbers of 32 bits, of which the library's own operators make others.
    """

    kind: str  # one of KNOWN
    module: Any
    device: Any
    dtype: str

    def count(self, start: int, stop: int) -> Any:
        """The numbers from `start` to `stop` - 1, int32."""
        where = {} if self.device is None else {"device": self.device}
        return self.module.arange(start, stop, dtype=self.module.int32, **where)

    def taken(self, array: Array) -> Any:
        """A NumPy array of int32 in the library."""
        if self.kind == "numpy":
            return array
        where = {} if self.device is None else {"device": self.device}
        if self.kind == "torch":
            return self.module.from_numpy(array).to(self.device or "cpu")
        return self.module.asarray(array, **where)

    def stacked(self, columns: list[Any]) -> Any:
        """Columns side by side."""
        return self.module.stack(columns, -1) if self.kind == "torch" else self.module.stack(columns, axis=-1)

    def floating(self, array: Any) -> Any:
        """Whole numbers in the dtype."""
        if self.kind == "numpy":
            return array.astype(NUMPY_DTYPES[self.dtype])
        dtype = getattr(self.module, self.dtype)
        if self.kind == "torch":
            return array.to(dtype)
        return array.astype(dtype) if self.kind == "jax" else self.module.astype(array, dtype)

    def parted(self, array: Any, parts: int) -> Any:
        """Whole numbers over a power of two, in the dtype."""
        return self.floating(self.floating(array) * (1 / parts))

    def shaped(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array in another shape."""
        return array.reshape(shape) if self.kind == "torch" else self.module.reshape(array, shape)

    def turned(self, array: Any, axes: tuple[int, ...]) -> Any:
        """The array with its axes in another order."""
        if self.kind == "torch":
            return array.permute(axes)
        if self.kind == "array-api-strict":
            return self.module.permute_dims(array, axes)
        return self.module.transpose(array, axes)

    def picked(self, array: Any, places: Array) -> Any:
        """The last axis in another order."""
        index = self.taken(places)
        if self.kind == "torch":
            return self.module.index_select(array, array.ndim - 1, index)
        return self.module.take(array, index, axis=array.ndim - 1)

    def filled(self, rows: int, width: int, block: Callable[[int, int], Any]) -> Any:
        """[rows, width] of blocks of rows, each put where it belongs as soon as it is made."""
        parts = list(spans(rows, max(BLOCK // width, 1)))
        if len(parts) == 1:
            return block(*parts[0])
        if self.kind == "jax":  # its arrays cannot be written to
            return self.module.concatenate([block(*part) for part in parts])
        where = {} if self.device is None else {"device": self.device}
        dtype = NUMPY_DTYPES[self.dtype] if self.kind == "numpy" else getattr(self.module, self.dtype)
        whole = self.module.empty((rows, width), dtype=dtype, **where)
        for start, stop in parts:
            whole[start:stop, :] = block(start, stop)
        return whole


def spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    """From .. to, so many at a time."""
    for start in range(0, count, step):
        yield start, min(start + step, count)


def host(dtype: str) -> Maker:
    """One that makes NumPy arrays."""
    return Maker("numpy", np, None, dtype)


def maker(target: Target, dtype: str) -> Maker:
    """One for a target's arrays; of a library that is not known NumPy makes them, and the target takes them."""
    kind, device = target.array_type, target.device
    if kind not in KNOWN or kind == "numpy":
        return host(dtype)
    module = library(kind)
    if kind == "jax":
        if dtype == "float64" and not module.config.read("jax_enable_x64"):
            module.config.update("jax_enable_x64", True)
        platform, _, index = (device or "").partition(":")
        where = module.devices(platform)[int(index or 0)] if device else None
        return Maker(kind, module.numpy, where, dtype)
    if kind == "array-api-strict" and device is not None:
        return Maker(kind, module, module.Device(device), dtype)
    return Maker(kind, module, device, dtype)
