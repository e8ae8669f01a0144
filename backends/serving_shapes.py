"""What adapters of serving kernels share: rows before heads, and causality that ends at the last key."""

import math
from typing import Any

import torch

__all__ = ["LN_2", "heads_first", "no_sinks", "pages_of", "places", "rows_first", "tables", "window_of"]

LN_2 = math.log(2)
"""What turns a logarithm to base 2 into a natural one."""


def rows_first(x: Any) -> Any:
    """(H, T, d) as (T, H, d)."""
    return x.transpose(-3, -2).contiguous()


def heads_first(x: Any) -> Any:
    """(T, H, d) as (H, T, d)."""
    return x.transpose(-3, -2)


def places(is_causal: bool, window: Any, q_offset: Any, q_lens: Any, kv_lens: Any) -> None:
    """Refuses causality or a window in which the last query does not stand at the last key, lengths being (n,)."""
    if not is_causal and window is None:
        return
    offset = torch.as_tensor(0 if q_offset is None else q_offset, device=q_lens.device)
    if torch.any((offset != kv_lens - q_lens) & (q_lens > 0) & (kv_lens > 0)):
        raise NotImplementedError("causality and windows are aligned with the last key")


def no_sinks(sinks: Any) -> None:
    """Refuses sinks in a merge."""
    if sinks is not None:
        raise NotImplementedError("sinks are no operand of a merge")


def pages_of(size: int, query: Any, key_pages: Any, value_pages: Any) -> None:
    """Refuses pages (N, page, G, d) that are no multiple of a size, and values of another width than queries."""
    if key_pages.shape[1] % size or query.shape[-1] != value_pages.shape[-1]:
        raise NotImplementedError(f"a page has a multiple of {size} places, and values are as wide as keys")


def window_of(window: Any, is_causal: bool) -> tuple[int, int]:
    """(left, right) with -1 for open."""
    left, right = (None, None) if window is None else window
    right = 0 if is_causal else right
    return (-1 if left is None else left, -1 if right is None else right)


def tables(page_table: Any, kv_lengths: Any, size: int) -> tuple[Any, Any, Any]:
    """A table as lists one behind the other: where each entry's begins, pages in use, keys in the last page."""
    counts = (kv_lengths + size - 1) // size
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    used = torch.arange(page_table.shape[1], device=page_table.device) < counts[:, None]
    return starts, page_table[used].int(), (kv_lengths - (counts - 1) * size).clamp(min=0).int()
