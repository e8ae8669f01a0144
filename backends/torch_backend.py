"""mha_core on torch tensors."""

import torch

import mha_core
from mha_core import multi_head_attention, scaled_dot_product_attention

__all__ = ["multi_head_attention", "scaled_dot_product_attention"]

name = "torch"
version = torch.__version__
array_type = "torch"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"
