"""FlashAttention's kernels for packed parts and for keys in pages; its causal masks end at the last key."""

from typing import Any

import flash_attn
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

from backends.serving_shapes import heads_first, pages_of, places, rows_first, window_of

__all__ = ["packed_attention", "paged_attention"]

name = "flash-attn"
version = flash_attn.__version__
array_type = "torch"
device = "cuda"
dtypes = ("float16", "bfloat16")
features = frozenset(
    {"packed", "paged", "is_causal", "q_offset", "window", "scale", "softcap", "return_lse", "gqa", "empty"}
)
accuracy = "fused"

PAGE = 256
"""A page has a multiple of these places."""


def packed_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    q_starts: Any,
    kv_starts: Any,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Parts by `cu_seqlens`."""
    q_lens, kv_lens = q_starts.diff(), kv_starts.diff()
    places(is_causal, window, q_offset, q_lens, kv_lens)
    if len(q_lens) == 0 or query.shape[-1] != value.shape[-1]:
        raise NotImplementedError("there is a part, and values are as wide as keys")
    output, lse, _ = flash_attn_varlen_func(
        rows_first(query),
        rows_first(key),
        rows_first(value),
        q_starts.int(),
        kv_starts.int(),
        int(q_lens.max()),
        int(kv_lens.max()),
        softmax_scale=scale,
        causal=is_causal,
        window_size=window_of(window, is_causal),
        softcap=softcap or 0.0,
        return_attn_probs=True,
    )
    output = heads_first(output)
    return {"output": output, "lse": lse} if return_lse else output


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
    """Pages by `block_table`."""
    q_lens = kv_lengths.new_full(kv_lengths.shape, query.shape[2])
    places(is_causal, window, q_offset, q_lens, kv_lengths)
    pages_of(PAGE, query, key_pages, value_pages)
    output, lse = flash_attn_with_kvcache(
        rows_first(query),
        key_pages,
        value_pages,
        cache_seqlens=kv_lengths.int(),
        block_table=page_table.int(),
        softmax_scale=scale,
        causal=is_causal,
        window_size=window_of(window, is_causal),
        softcap=softcap or 0.0,
        return_softmax_lse=True,
    )
    output = heads_first(output)
    return {"output": output, "lse": lse} if return_lse else output
