"""torch's FlexAttention, uncompiled: its reference on a CPU."""

import warnings
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from backends.torch_shapes import flat, visible, whole

__all__ = ["scaled_dot_product_attention"]

name = "torch-flex"
version = torch.__version__
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
    """Attention: what is hidden as a block mask, softcap and bias as a function of the score."""
    batch, kv_len = query.shape[:-3], key.shape[-2]
    seen = visible(query, kv_len, mask, is_causal, q_offset)
    added = None if attn_bias is None else whole(attn_bias, query, kv_len).float()
    q, k, v = flat(query), flat(key), flat(value)

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added[b, h, i, j]

    block_mask = None
    if seen is not None:
        seen = seen.expand(*q.shape[:-1], kv_len).contiguous()
        block_mask = create_block_mask(
            lambda b, h, i, j: seen[b, h, i, j], q.shape[0], q.shape[1], q.shape[2], kv_len, device=q.device
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is not compiled
        output = flex_attention(
            q, k, v, score_mod, block_mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    return output.reshape(*batch, *output.shape[1:])
