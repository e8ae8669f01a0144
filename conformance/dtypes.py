"""NumPy dtypes by the names of the suite; bfloat16 comes from ml_dtypes."""

import ml_dtypes
import numpy as np
import numpy.typing as npt

NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "bool": np.dtype(np.bool_),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
}
"""Every dtype that a vector, a message or an output may have."""

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of one rounding to nearest."""

MAX_FINITE = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
}


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """The suite's name of a NumPy dtype; NumPy's own where the suite has none."""
    return str(dtype.name)


def same_numbers(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> bool:
    """Whether two arrays hold the same numbers, NaN in the same places; fast where there is no NaN."""
    return np.array_equal(one, other) or np.array_equal(one, other, equal_nan=True)


def cast(array: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.generic]:
    """The array in a named dtype, freshly allocated and in C order."""
    with np.errstate(over="ignore"):
        return np.array(array, dtype=NUMPY_DTYPES[dtype], order="C", copy=True)
