"""vLLM's kernels: keys in pages with queries packed, writing by slots, merging two parts."""

from typing import Any

import torch
import vllm
from vllm import _custom_ops as ops
from vllm.vllm_flash_attn import flash_attn_varlen_func

from backends.serving_shapes import heads_first, no_sinks, pages_of, places, rows_first, window_of

__all__ = ["append_to_pages", "merge_attention", "paged_attention"]

name = "vllm"
version = vllm.__version__
array_type = "torch"
device = "cuda"
dtypes = ("float16", "bfloat16")
features = frozenset(
    {
        *("paged", "append", "merge", "is_causal", "q_offset", "window", "scale", "softcap", "return_lse"),
        *("gqa", "empty"),
    }
)
accuracy = "fused"

PAGE = 16
"""A page has a multiple of these places."""


def paged_attention(
    query: Any,
    key_pages: Any,
    value_pages: Any,
    *,
    page_table: Any,
    kv_lengths: Any,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Queries of all entries one behind the other, keys by `block_table` and `seqused_k`."""
    batch, heads, q_len, width = query.shape
    places(is_causal, window, q_offset, kv_lengths.new_full(kv_lengths.shape, q_len), kv_lengths)
    pages_of(PAGE, query, key_pages, value_pages)
    output, lse = flash_attn_varlen_func(
        rows_first(query).reshape(batch * q_len, heads, width),
        key_pages,
        value_pages,
        max_seqlen_q=q_len,
        cu_seqlens_q=torch.arange(batch + 1, dtype=torch.int32, device=query.device) * q_len,
        max_seqlen_k=page_table.shape[1] * key_pages.shape[1],
        seqused_k=kv_lengths.int(),
        softmax_scale=width**-0.5 if scale is None else scale,
        causal=is_causal,
        window_size=list(window_of(window, is_causal)),
        softcap=softcap or 0.0,
        block_table=page_table.int(),
        return_softmax_lse=True,
    )
    output = heads_first(output.reshape(batch, q_len, heads, width))
    lse = lse.reshape(heads, batch, q_len).transpose(0, 1)
    return {"output": output, "lse": lse} if return_lse else output


def append_to_pages(key_pages: Any, value_pages: Any, new_key: Any, new_value: Any, *, slots: Any) -> Any:
    """In copies, of which it writes in place; a slot of -1 is its own word for none."""
    key_pages, value_pages = key_pages.clone(), value_pages.clone()
    if key_pages.shape != value_pages.shape:
        raise NotImplementedError("values are as wide as keys")
    one = torch.ones(1, dtype=torch.float32, device=slots.device)
    ops.reshape_and_cache_flash(new_key, new_value, key_pages, value_pages, slots.long(), "auto", one, one)
    return key_pages, value_pages


def merge_attention(outputs: Any, lses: Any, *, sinks: Any = None) -> Any:
    """Parts one after the other, rows of all batch entries as one sequence."""
    no_sinks(sinks)
    shape = outputs[0].shape
    heads, length, width = shape[-3:]
    rows = [rows_first(x.reshape(-1, heads, length, width)).reshape(-1, heads, width) for x in outputs]
    sums = [
        x.reshape(-1, heads, length).float().transpose(0, 1).reshape(heads, -1).contiguous() for x in lses
    ]
    output, lse = rows[0], sums[0]
    for row, total in zip(rows[1:], sums[1:], strict=True):
        both, both_lse = torch.empty_like(output), torch.empty_like(lse)
        ops.merge_attn_states(both, output, lse, row, total, both_lse)
        output, lse = both, both_lse
    output = output.reshape(-1, length, heads, width).transpose(1, 2).reshape(shape)
    return output, lse.reshape(heads, -1, length).transpose(0, 1).reshape(shape[:-1])
