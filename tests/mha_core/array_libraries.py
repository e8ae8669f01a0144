"""The array libraries that the core is tested on, each reached by name: a missing one is a visible skip."""

import importlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

NUMPY_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Library:
    """How NumPy arrays become arrays of a library, and come back."""

    name: str
    module: Any

    def array(self, x, dtype=None):
        """`x` as an array of the library, cast to a dtype by name if given."""
        x = np.asarray(x)
        if dtype is not None:
            x = x.astype(NUMPY_DTYPES[dtype])
        if self.name == "torch" and x.dtype == ml_dtypes.bfloat16:
            return self.module.asarray(x.astype(np.float32)).to(self.module.bfloat16)
        return x if self.name == "numpy" else self.module.asarray(x.copy())

    def numpy(self, x):
        """An array of the library in NumPy, bfloat16 widened to float32."""
        if self.name == "torch":
            x = x.detach()
            x = x.float() if x.dtype == self.module.bfloat16 else x
        x = np.asarray(x)
        return x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x


MODULES = {"numpy": "numpy", "array-api-strict": "array_api_strict", "torch": "torch", "jax": "jax.numpy"}


def library(name):
    """The library of a name; the test is skipped where it is not installed."""
    module = pytest.importorskip(MODULES[name], reason=f"{name} is not installed")
    return Library(name, module if name != "jax" else importlib.import_module("jax.numpy"))


def dtypes_of(name):
    """The dtypes that a library can compute in by itself."""
    if name == "array-api-strict":
        return ("float64", "float32")
    if name == "jax":
        return ("float32", "float16", "bfloat16")  # float64 needs a switch for the whole process
    return ("float64", "float32", "float16", "bfloat16")


TOLERANCES = {
    "float64": {"rtol": 1e-11, "atol": 1e-12},
    "float32": {"rtol": 3e-5, "atol": 3e-6},
    "float16": {"rtol": 2e-3, "atol": 1e-5},
    "bfloat16": {"rtol": 2e-2, "atol": 2e-3},
}


def call(operation, lib, arrays, options, dtype=None):
    """The operation on NumPy arrays by name, floating ones cast: its result in NumPy, by the name of the output."""
    given = {}
    for name, x in arrays.items():
        floating = np.asarray(x).dtype.kind == "f" and name != "attn_bias"
        given[name] = lib.array(x, dtype if floating else None)
    result = operation(**given, **options)
    if not isinstance(result, tuple):
        return {"output": lib.numpy(result)}
    return {name: lib.numpy(x) for name, x in result._asdict().items() if x is not None}
