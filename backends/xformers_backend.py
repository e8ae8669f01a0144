"""xFormers' memory-efficient attention for packed parts, by a block-diagonal mask, and its merge of parts."""

from typing import Any

import xformers
from xformers.ops import fmha

from backends.serving_shapes import heads_first, no_sinks, places, rows_first

__all__ = ["merge_attention", "packed_attention"]

name = "xformers"
version = xformers.__version__
array_type = "torch"
device = "cuda"
dtypes = ("float16", "bfloat16")
features = frozenset({"packed", "merge", "is_causal", "q_offset", "scale", "return_lse", "gqa"})
accuracy = "fused"


def packed_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    q_starts: Any,
    kv_starts: Any,
    is_causal: bool = False,
    q_offset: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Rows (1, T, G, H // G, d), parts by their lengths."""
    q_lens, kv_lens = q_starts.diff(), kv_starts.diff()
    places(is_causal, None, q_offset, q_lens, kv_lens)
    if not len(q_lens) or 0 in q_lens.tolist() or 0 in kv_lens.tolist():
        raise NotImplementedError("each part has a query and a key")
    mask = fmha.attn_bias.BlockDiagonalMask.from_seqlens(q_lens.tolist(), kv_lens.tolist())
    if is_causal:
        mask = mask.make_causal_from_bottomright()
    groups, rows, last = key.shape[0], int(q_starts[-1]), int(kv_starts[-1])
    heads, group = query.shape[0], query.shape[0] // groups
    q = rows_first(query[:, :rows])[None].unflatten(2, (groups, group))
    k, v = (rows_first(x[:, :last])[None, :, :, None].expand(-1, -1, -1, group, -1) for x in (key, value))
    found, sums = fmha.memory_efficient_attention_forward_requires_grad(q, k, v, mask, scale=scale)
    output = value.new_zeros((heads, query.shape[1], value.shape[2]))
    output[:, :rows] = heads_first(found[0].flatten(1, 2))
    lse = sums.new_full(output.shape[:2], -float("inf"))
    lse[:, :rows] = sums[0].flatten(0, 1)
    return {"output": output, "lse": lse} if return_lse else output


def merge_attention(outputs: Any, lses: Any, *, sinks: Any = None) -> Any:
    """Outputs as (B, length, H, d), log-sum-exps as (B, H, length)."""
    no_sinks(sinks)
    shape = outputs[0].shape
    heads, length, width = shape[-3:]
    parts = [x.reshape(-1, heads, length, width).transpose(1, 2).contiguous() for x in outputs]
    sums = [x.reshape(-1, heads, length).float() for x in lses]
    output, lse = fmha.merge_attentions(parts, sums)
    return output.transpose(1, 2).reshape(shape), lse.reshape(shape[:-1])
