"""mha_core on arrays of MLX, on its processor device."""

import importlib.metadata
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

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

name = "mlx"
version = importlib.metadata.version("mlx")
dtypes = ("float32", "float16", "bfloat16")
features = mha_core.FEATURES
accuracy = "fused"

mx.set_default_device(mx.cpu)


def asarray(array: Any) -> Any:
    """The same numbers and dtype, a wide one too; bfloat16 comes from float32, exactly."""
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(array.astype(np.float32)).astype(mx.bfloat16)
    return mx.array(np.array(array, order="C"), dtype=getattr(mx, array.dtype.name.replace("bool", "bool_")))


def to_numpy(array: Any) -> Any:
    """The same numbers; bfloat16 goes by float32, exactly."""
    if array.dtype == mx.bfloat16:
        return np.asarray(array.astype(mx.float32)).astype(ml_dtypes.bfloat16)
    return np.asarray(array)
