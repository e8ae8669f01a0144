"""mha_core on NumPy arrays."""

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

name = "numpy"
version = np.__version__
array_type = "numpy"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"
