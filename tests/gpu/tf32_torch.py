"""The backend `torch` with TensorFloat-32 switched on and declared: its float32 results may be that coarse."""

import torch

from backends.torch_backend import (
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
from mha_core import FEATURES

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

torch.backends.cuda.matmul.allow_tf32 = True

name = "torch-tf32"
version = torch.__version__
array_type = "torch"
dtypes = ("float32",)
features = FEATURES
based_on = "mha_core"
accuracy = "tf32t"  # tensor cores drop the bits that they do not read
