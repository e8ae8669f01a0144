"""mha_core on torch tensors by the Array API alone: no fused kernel, and the gradients are the core's own."""

import functools
from collections.abc import Callable
from typing import Any

import torch

import mha_core
from mha_core import (
    append_to_pages,
    merge_attention,
    multi_head_attention_vjp,
    scaled_dot_product_attention_vjp,
)
from mha_core.torch_fused import portable

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

name = "torch-portable"
version = torch.__version__
array_type = "torch"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"


def _portable(operation: Callable[..., Any]) -> Callable[..., Any]:
    """The operation on the portable path, as MHA_CORE_PATH=portable makes all of them."""

    @functools.wraps(operation)
    def call(*operands: Any, **options: Any) -> Any:
        with portable():
            return operation(*operands, **options)

    return call


scaled_dot_product_attention = _portable(mha_core.scaled_dot_product_attention)
multi_head_attention = _portable(mha_core.multi_head_attention)
packed_attention = _portable(mha_core.packed_attention)
paged_attention = _portable(mha_core.paged_attention)
latent_attention = _portable(mha_core.latent_attention)
