"""torch's own scaled_dot_product_attention, restricted to one of its kernels."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from backends.torch_shapes import gradients_of

__all__ = ["efficient", "flash", "math"]


class KernelOfTorch:
    """What `torch.nn.functional.scaled_dot_product_attention` computes when only one kernel may be used."""

    version = torch.__version__
    array_type = "torch"
    dtypes = ("float64", "float32", "float16", "bfloat16")
    features = frozenset(
        [
            "mask",
            "attn_bias",
            "is_causal",
            "q_offset",
            "scale",
            "gqa",
            "value_dim",
            "broadcast",
            "empty",
            "validation",
        ]
    )

    def __init__(self, name: str, kernel: Any, accuracy: str) -> None:
        self.name = name
        self.accuracy = accuracy
        self._kernel = kernel

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        attn_bias: Any = None,
        is_causal: bool = False,
        q_offset: Any = None,
        scale: float | None = None,
    ) -> Any:
        """Attention; one of mask and attn_bias, and causal from one of the two corners."""
        if mask is not None and attn_bias is not None:
            raise NotImplementedError("attn_mask is boolean or added, not both at once")
        if (mask is not None and mask.is_floating_point()) or getattr(attn_bias, "dtype", None) == torch.bool:
            raise NotImplementedError("whether attn_mask is added is said by its dtype alone")
        attn_mask = attn_bias if mask is None else mask
        if is_causal and q_offset is not None and torch.any(torch.as_tensor(q_offset) != 0):
            q_len, kv_len = query.shape[-2], key.shape[-2]
            if torch.any(torch.as_tensor(q_offset) != kv_len - q_len) or attn_mask is not None:
                raise NotImplementedError("causal is from the upper left or, without a mask, the lower right")
            is_causal, attn_mask = False, causal_lower_right(q_len, kv_len)
        try:
            with sdpa_kernel(self._kernel):
                return torch.nn.functional.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    attn_mask,
                    is_causal=is_causal,
                    scale=scale,
                    enable_gqa=query.shape[-3] != key.shape[-3],
                )
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise NotImplementedError(f"torch does not use this kernel here: {error}") from error
            raise

    def scaled_dot_product_attention_vjp(
        self, query: Any, key: Any, value: Any, grad_output: Any, *, attn_bias: Any = None, **options: Any
    ) -> Mapping[str, Any]:
        """Gradients, as autograd computes them."""
        given = {"query": query, "key": key, "value": value, "attn_bias": attn_bias}
        return gradients_of(partial(self.scaled_dot_product_attention, **options), given, grad_output)


math = KernelOfTorch("torch-sdpa-math", SDPBackend.MATH, "eager")
efficient = KernelOfTorch("torch-sdpa-efficient", SDPBackend.EFFICIENT_ATTENTION, "fused")  # CUDA only
flash = KernelOfTorch("torch-sdpa-flash", SDPBackend.FLASH_ATTENTION, "fused")
