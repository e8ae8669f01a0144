"""Tensor files in two encodings: safetensors for bulk, JSON for what a person should be able to read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from conformance.reading import strict_json
from conformance.vectors.case import Array

JSON_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
}
"""Dtype tags of a tensor file: safetensors' own names."""
_TAGS = {dtype: tag for tag, dtype in JSON_DTYPES.items()}
_WORDS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Writes a tensor file in the encoding that its suffix names; equal tensors give equal bytes."""
    ordered = {key: np.ascontiguousarray(tensors[key]).reshape(tensors[key].shape) for key in sorted(tensors)}
    if path.suffix == ".json":
        lines = (f"{json.dumps(key)}: {json.dumps(_to_json(array))}" for key, array in ordered.items())
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    else:
        path.write_bytes(safetensors.numpy.save(ordered))


def parse_tensors(raw: bytes, suffix: str) -> dict[str, Array]:
    """The tensors of a whole file, in the encoding that its suffix names.

    Raises:
        ValueError: it does not hold what its format asks for.
    """
    if suffix == ".json":
        document = strict_json(raw)
        if not isinstance(document, dict):
            raise ValueError("it is not an object of tensors by name")
        return {key: _from_json(key, entry) for key, entry in document.items()}
    try:
        read: Any = safetensors.deserialize  # its reader of whole files as NumPy arrays lacks bfloat16
        tensors = read(raw)
    except safetensors.SafetensorError as error:
        raise ValueError(f"no safetensors: {error}") from error
    if strange := next((entry["dtype"] for _, entry in tensors if entry["dtype"] not in JSON_DTYPES), None):
        raise ValueError(f"a tensor has dtype {strange}")
    return {
        key: np.frombuffer(entry["data"], JSON_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for key, entry in tensors
    }


def _to_json(array: Array) -> dict[str, Any]:
    data = [_number(x) for x in array.ravel()]
    return {"dtype": _TAGS[array.dtype], "shape": list(array.shape), "data": data}


def _number(x: Any) -> Any:
    """The shortest decimal that reads back as the same number, as a float64 first and then in its own dtype."""
    if isinstance(x, ml_dtypes.bfloat16):
        return float(x)
    if not isinstance(x, np.floating):
        return x.item()
    if not np.isfinite(x):
        return "nan" if np.isnan(x) else ("inf" if x > 0 else "-inf")
    shortest = float(str(x))
    return shortest if type(x)(shortest) == x else float(x)


def _from_json(key: str, entry: Mapping[str, Any]) -> Array:
    try:
        if not all(type(size) is int and size >= 0 for size in entry["shape"]):
            raise ValueError(f"the shape is {entry['shape']!r:.60}")
        values = [_WORDS[x] if isinstance(x, str) else x for x in entry["data"]]
        return np.array(values, dtype=JSON_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"tensor {key!r}: {error}") from error
