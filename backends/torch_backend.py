"""mha_core on torch tensors; the gradients are torch's own."""

import functools
from collections.abc import Callable
from typing import Any

import torch

import mha_core
from mha_core import (
    append_to_pages,
    latent_attention,
    merge_attention,
    multi_head_attention,
    packed_attention,
    paged_attention,
    scaled_dot_product_attention,
)
from mha_core.checks import check_grad_lse, check_grad_output

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

name = "torch"
version = torch.__version__
array_type = "torch"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"

PAST = ("past_key", "past_value")
"""Operands without a gradient (GRAD-13)."""


def _autograd(operation: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of an operation by torch.autograd, called as the core's own `like`."""

    @functools.wraps(like)
    def vjp(
        query: Any, key: Any, value: Any, grad_output: Any, *, grad_lse: Any = None, **options: Any
    ) -> dict[str, torch.Tensor]:
        operands = {"query": query, "key": key, "value": value, **options}
        leaves = {
            name: x.detach().requires_grad_()
            for name, x in operands.items()
            if isinstance(x, torch.Tensor) and x.is_floating_point() and name not in PAST
        }
        with torch.enable_grad():
            result = operation(**operands | leaves, return_lse=grad_lse is not None)
        output = result.output if isinstance(result, mha_core.AttentionResult) else result
        check_grad_output(grad_output, output, tuple(output.shape))
        results, grads = [output], [grad_output]
        if grad_lse is not None:
            check_grad_lse(torch, grad_lse, query, tuple(result.lse.shape))
            results, grads = [output, result.lse], [grad_output, grad_lse.to(result.lse.dtype)]
        gradients = torch.autograd.grad(results, [*leaves.values()], grads, materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))

    return vjp


scaled_dot_product_attention_vjp = _autograd(
    scaled_dot_product_attention, mha_core.scaled_dot_product_attention_vjp
)
multi_head_attention_vjp = _autograd(multi_head_attention, mha_core.multi_head_attention_vjp)
