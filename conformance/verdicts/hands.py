"""Arrays to and from a program's library, and what can be seen of what it returned.

All functions of the library are taken before the program is loaded: what it replaces later is not used here.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from conformance.running.arrays import lay_out
from conformance.vectors.case import Array

Region = tuple[int, int]
"""Addresses of memory, from .. to (without it)."""


class Hands(Protocol):
    """One array library."""

    def give(self, array: Array, how: str | None = None) -> Any:
        """The library's array with the same numbers, in memory of its own."""

    def take(self, thing: Any) -> Array:
        """A copy of the numbers of an array."""

    def strange(self, thing: Any) -> str:
        """What is not plain about a result; empty for an array of the library itself."""

    def region(self, thing: Any) -> Region:
        """The memory of an array: the whole storage that it is a part of."""

    def overwrite(self, thing: Any, array: Array) -> None:
        """Puts other numbers into an array that was given."""

    def poison(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
        """Fills and frees memory of the sizes that results are likely to have."""

    def wait(self) -> None:
        """Waits for the device."""


class NumpyHands:
    """NumPy."""

    def __init__(self) -> None:
        self._full, self._array, self._copyto = np.full, np.array, np.copyto
        self._type = np.ndarray
        self._bounds: Any = getattr(np.lib, "array_utils", np).byte_bounds  # which NumPy 2 has moved

    def give(self, array: Array, how: str | None = None) -> Any:
        """See `Hands`."""
        return lay_out(array, how)

    def take(self, thing: Any) -> Array:
        """See `Hands`."""
        return self._array(thing, order="C", copy=True)

    def strange(self, thing: Any) -> str:
        """See `Hands`."""
        if type(thing) is not self._type:
            return f"is {_article(type(thing).__name__)}, wanted a plain NumPy array"
        return ""

    def region(self, thing: Any) -> Region:
        """See `Hands`."""
        while isinstance(thing.base, self._type):
            thing = thing.base
        return tuple(self._bounds(thing))

    def overwrite(self, thing: Any, array: Array) -> None:
        """See `Hands`."""
        self._copyto(thing, array)

    def poison(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
        """See `Hands`."""
        blocks = [self._full(shape, np.nan, dtype) for shape in shapes for dtype in dtypes for _ in range(2)]
        blocks.clear()

    def wait(self) -> None:
        """See `Hands`."""


class TorchHands:
    """Torch, on one device."""

    def __init__(self, device: str | None) -> None:
        torch: Any = importlib.import_module("torch")
        tensor = torch.Tensor
        self.torch = torch
        self._device = device
        self._tensor, self._parameter = tensor, torch.nn.Parameter
        self._from_numpy, self._int16, self._bfloat16 = torch.from_numpy, torch.int16, torch.bfloat16
        self._detach, self._cpu, self._to, self._clone = tensor.detach, tensor.cpu, tensor.to, tensor.clone
        self._contiguous, self._view, self._numpy = tensor.contiguous, tensor.view, tensor.numpy
        self._copy, self._storage, self._device_of = (
            tensor.copy_,
            tensor.untyped_storage,
            tensor.device.__get__,
        )
        self._layout, self._strided = tensor.layout.__get__, torch.strided
        self._dtype, self._requires = tensor.dtype.__get__, tensor.requires_grad_
        self._full, self._names = (
            torch.full,
            {n: getattr(torch, n) for n in ("float32", "float16", "bfloat16", "float64")},
        )
        self._no_grad, self._grad = torch.no_grad, torch.autograd.grad
        self._synchronize = torch.cuda.synchronize if (device or "").startswith("cuda") else None
        self._type_of = type(torch.zeros(1).untyped_storage())
        self._pointer, self._size = self._type_of.data_ptr, self._type_of.nbytes
        self._neg, self._conj = tensor.is_neg, tensor.is_conj
        self._resolve_neg, self._resolve_conj = tensor.resolve_neg, tensor.resolve_conj

    def give(self, array: Array, how: str | None = None) -> Any:
        """See `Hands`."""
        made = lay_out(array, how)
        if made.dtype == ml_dtypes.bfloat16:
            given = self._view(self._from_numpy(made.view(np.int16)), self._bfloat16)
        else:
            given = self._from_numpy(made)
        return given if self._device is None else self._to(given, self._device)

    def take(self, thing: Any) -> Array:
        """See `Hands`."""
        thing = self._contiguous(self._resolve_neg(self._resolve_conj(self._cpu(self._detach(thing)))))
        if self._dtype(thing) == self._bfloat16:
            return np.array(self._numpy(self._view(thing, self._int16))).view(ml_dtypes.bfloat16)
        return np.array(self._numpy(thing))

    def strange(self, thing: Any) -> str:
        """See `Hands`."""
        if type(thing) not in (self._tensor, self._parameter):
            return f"is {_article(type(thing).__name__)}, wanted a plain tensor of torch"
        if self._layout(thing) != self._strided:
            return f"has layout {self._layout(thing)}, wanted a strided one"
        where, wanted = str(self._device_of(thing)), self._device or "cpu"
        if where.partition(":")[0] != wanted.partition(":")[0]:
            return f"is on device {where}, its operands are on {wanted}"
        return "is a lazy negation or conjugate" if self._neg(thing) or self._conj(thing) else ""

    def region(self, thing: Any) -> Region:
        """See `Hands`."""
        storage = self._storage(thing)
        start = self._pointer(storage)
        return start, start + self._size(storage)

    def overwrite(self, thing: Any, array: Array) -> None:
        """See `Hands`."""
        with self._no_grad():
            self._copy(self._detach(thing), self.give(array))

    def poison(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
        """See `Hands`."""
        options = {} if self._device is None else {"device": self._device}
        blocks = [
            self._full(shape, float("nan"), dtype=self._names[dtype], **options)
            for shape in shapes
            for dtype in dtypes
            for _ in range(2)
        ]
        blocks.clear()

    def wait(self) -> None:
        """See `Hands`."""
        if self._synchronize is not None:
            self._synchronize()

    # Gradients and parameters

    def leaf(self, tensor: Any) -> Any:
        """The tensor as one that gradients are asked of."""
        return self._requires(tensor)

    def without_gradients(self) -> Any:
        """A context in which nothing is recorded for gradients."""
        return self._no_grad()

    def gradients(self, output: Any, leaves: Sequence[Any], cotangent: Any) -> Sequence[Any]:
        """The gradients of some operands; None for one that the output does not depend on."""
        return tuple(self._grad(output, list(leaves), cotangent, allow_unused=True))

    def fill(self, module: Any, state: Mapping[str, Array]) -> str:
        """Puts numbers into parameters by name; what is wrong, if one is missing or has another shape."""
        held = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        for name, array in state.items():
            if name not in held:
                return f"the module has no parameter {name!r}; it has {', '.join(held) or 'none'}"
            if tuple(held[name].shape) != array.shape:
                return f"parameter {name} has shape {tuple(held[name].shape)}, wanted {array.shape}"
            self.overwrite(held[name], array)
        return ""


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def hands(array_type: str, device: str | None) -> Any:
    """What handles the arrays of a library."""
    return TorchHands(device) if array_type == "torch" else NumpyHands()
