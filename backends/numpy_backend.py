"""mha_core on NumPy arrays."""

import numpy as np

import mha_core
from mha_core import (
    multi_head_attention,
    multi_head_attention_vjp,
    scaled_dot_product_attention,
    scaled_dot_product_attention_vjp,
)

__all__ = [
    "multi_head_attention",
    "multi_head_attention_vjp",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
]

name = "numpy"
version = np.__version__
array_type = "numpy"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"
