"""mha_core on array-api-strict, which offers the Array API and nothing else."""

import array_api_strict

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

name = "array-api-strict"
version = array_api_strict.__version__
array_type = "array-api-strict"
dtypes = ("float64", "float32")  # the Array API has no 16-bit floats
features = mha_core.FEATURES
accuracy = "fused"
