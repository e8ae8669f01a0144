"""FlashInfer's kernels for packed parts, keys in pages, writing and merging; its log-sum-exp has base 2."""

from typing import Any

import flashinfer
import torch

from backends.serving_shapes import LN_2, heads_first, no_sinks, places, rows_first, tables

__all__ = ["append_to_pages", "merge_attention", "packed_attention", "paged_attention"]

name = "flashinfer"
version = flashinfer.__version__
array_type = "torch"
device = "cuda"
dtypes = ("float16", "bfloat16")
features = frozenset(
    {
        *("packed", "paged", "append", "merge", "is_causal", "q_offset", "window", "scale", "softcap"),
        *("return_lse", "gqa", "empty"),
    }
)
accuracy = "fused"

WORKSPACE = 128 * 2**20
"""Bytes that its documentation asks for."""


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
    """Parts by `indptr`."""
    places(is_causal, window, q_offset, q_starts.diff(), kv_starts.diff())
    if len(q_starts) == 1:
        raise NotImplementedError("there is a part")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(query), "NHD")
    wrapper.plan(
        q_starts.int(),
        kv_starts.int(),
        query.shape[0],
        key.shape[0],
        query.shape[2],
        head_dim_vo=value.shape[2],
        causal=is_causal,
        window_left=_left(window, is_causal),
        logits_soft_cap=softcap or 0.0,
        sm_scale=scale,
        q_data_type=query.dtype,
        kv_data_type=key.dtype,
    )
    output, lse = wrapper.run(rows_first(query), rows_first(key), rows_first(value), return_lse=True)
    output = heads_first(output)
    return {"output": output, "lse": lse.transpose(0, 1) * LN_2} if return_lse else output


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
    """Pages by lists of those in use."""
    batch, heads, q_len, width = query.shape
    places(is_causal, window, q_offset, kv_lengths.new_full(kv_lengths.shape, q_len), kv_lengths)
    starts, pages, last = tables(page_table, kv_lengths, key_pages.shape[1])
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(query), "NHD")
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32, device=query.device) * q_len,
        starts,
        pages,
        last,
        heads,
        key_pages.shape[2],
        width,
        key_pages.shape[1],
        head_dim_vo=value_pages.shape[3],
        causal=is_causal,
        window_left=_left(window, is_causal),
        logits_soft_cap=softcap or 0.0,
        sm_scale=scale,
        q_data_type=query.dtype,
        kv_data_type=key_pages.dtype,
    )
    rows = rows_first(query).reshape(batch * q_len, heads, width)
    output, lse = wrapper.run(rows, (key_pages, value_pages), return_lse=True)
    output = heads_first(output.reshape(batch, q_len, heads, value_pages.shape[3]))
    lse = lse.reshape(batch, q_len, heads).transpose(1, 2) * LN_2
    return {"output": output, "lse": lse} if return_lse else output


def append_to_pages(key_pages: Any, value_pages: Any, new_key: Any, new_value: Any, *, slots: Any) -> Any:
    """All pages as those of one sequence, in copies of which it writes in place."""
    count, size = key_pages.shape[:2]
    key_pages, value_pages, kept = key_pages.clone(), value_pages.clone(), slots >= 0
    whole = {"dtype": torch.int32, "device": slots.device}
    flashinfer.append_paged_kv_cache(
        new_key[kept],
        new_value[kept],
        torch.zeros(int(kept.sum()), **whole),
        slots[kept].int(),
        (key_pages, value_pages),
        torch.arange(count, **whole),
        torch.tensor([0, count], **whole),
        torch.tensor([size], **whole),
        "NHD",
    )
    return key_pages, value_pages


def merge_attention(outputs: Any, lses: Any, *, sinks: Any = None) -> Any:
    """All parts at once, rows of all batch entries as one sequence."""
    no_sinks(sinks)
    shape, parts = outputs[0].shape, len(outputs)
    heads, length, width = shape[-3:]
    v = torch.stack([x.reshape(-1, heads, length, width) for x in outputs]).permute(1, 3, 0, 2, 4)
    s = torch.stack([x.reshape(-1, heads, length).float() for x in lses]).permute(1, 3, 0, 2)
    output, lse = flashinfer.merge_states(
        v.reshape(-1, parts, heads, width).contiguous(), s.reshape(-1, parts, heads).contiguous() / LN_2
    )
    output = output.reshape(-1, length, heads, width).transpose(1, 2).reshape(shape)
    return output, lse.reshape(-1, length, heads).transpose(1, 2).reshape(shape[:-1]) * LN_2


def _workspace(like: Any) -> Any:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=like.device)


def _left(window: Any, is_causal: bool) -> int:
    """How many keys before its own a query sees, -1 for all."""
    left, right = (None, None) if window is None else window
    if right is not None and not is_causal:
        raise NotImplementedError("a window is open to the right, or causal")
    return -1 if left is None else int(left)
