"""The `flex_attention` of Hugging Face transformers, around torch's FlexAttention as it is without a compiler."""

from types import SimpleNamespace
from typing import Any

import transformers
from torch.nn.attention import flex_attention as of_torch
from transformers.integrations import flex_attention as of_transformers

from backends.torch_shapes import flat, visible, whole

__all__ = ["scaled_dot_product_attention"]

name = "transformers-flex"
version = transformers.__version__
array_type = "torch"
dtypes = ("float32", "bfloat16")
features = frozenset(
    [
        "mask",
        "attn_bias",
        "is_causal",
        "q_offset",
        "scale",
        "softcap",
        "gqa",
        "value_dim",
        "broadcast",
        "empty",
    ]
)
accuracy = "fused"


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    attn_bias: Any = None,
    is_causal: bool = False,
    q_offset: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Any:
    """Attention; what is hidden as a block mask, as its models give it, the bias as that of positions."""
    batch, kv_len = query.shape[:-3], key.shape[-2]
    seen = visible(query, kv_len, mask, is_causal, q_offset)
    added = None if attn_bias is None else whole(attn_bias, query, kv_len).float()
    q, k, v = flat(query), flat(key), flat(value)
    block_mask = None
    if seen is not None:
        seen = seen.expand(*q.shape[:-1], kv_len).contiguous()
        block_mask = of_torch.create_block_mask(
            lambda b, h, i, j: seen[b, h, i, j], *q.shape[:3], kv_len, device=q.device
        )
    output, _ = of_transformers.flex_attention_forward(
        SimpleNamespace(training=False),
        q,
        k,
        v,
        block_mask,
        scaling=query.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        position_bias=added,
    )
    output = output.transpose(1, 2)
    return output.reshape(*batch, *output.shape[1:])


def _uncompiled(q: Any, k: Any, v: Any, training: bool = False, **options: Any) -> Any:
    return of_torch.flex_attention(q, k, v, **{n: x for n, x in options.items() if n != "return_lse"})


of_torch._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # else each shape is compiled
of_transformers.compile_friendly_flex_attention = _uncompiled
