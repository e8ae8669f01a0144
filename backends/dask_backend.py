"""mha_core on chunked arrays of dask, each axis but the last in two chunks; results are computed when read."""

from typing import Any

import dask
import dask.array as da

import mha_core
from mha_core import (
    append_to_pages,
    latent_attention,
    merge_attention,
    multi_head_attention,
    multi_head_attention_vjp,
    packed_attention,
    paged_attention,
    scaled_dot_product_attention,
    scaled_dot_product_attention_vjp,
)

__all__ = [
    "append_to_pages",
    "latent_attention",
    "merge_attention",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "packed_attention",
    "paged_attention",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
]

name = "dask"
version = dask.__version__
dtypes = ("float64", "float32", "float16")
features = mha_core.FEATURES - {"empty"}  # dask itself cannot reduce some arrays of no element
accuracy = "fused"


def asarray(array: Any) -> Any:
    """An array of two chunks along each axis but the last."""
    chunks = tuple((n - n // 2, n // 2) if n > 1 else (n,) for n in array.shape[:-1]) + array.shape[-1:]
    return da.from_array(array, chunks=chunks)


def to_numpy(array: Any) -> Any:
    """The values, computed in this thread."""
    return array.compute(scheduler="synchronous")
