"""What adapters of torch libraries share: exactly four axes, one mask of full shape, causality as a mask."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["flat", "from_the_end", "gradients_of", "of_the_same_dtype", "visible", "whole"]


def flat(x: Any) -> Any:
    """(..., H, length, d) as (B, H, length, d)."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def whole(x: Any, query: Any, kv_len: int) -> Any:
    """A mask or bias that broadcasts, as (B, H, q_len, kv_len)."""
    return flat(x.expand(*query.shape[:-1], kv_len))


def of_the_same_dtype(attn_bias: Any, query: Any) -> None:
    """Refuses a bias of another dtype than the query."""
    if attn_bias is not None and attn_bias.dtype != query.dtype:
        raise NotImplementedError("attn_bias has the dtype of query")


def from_the_end(is_causal: bool, q_offset: Any, q_len: int, kv_len: int) -> None:
    """Refuses causality in which the last query does not see just all keys."""
    offset = torch.as_tensor(0 if q_offset is None else q_offset)
    if is_causal and torch.any(offset != kv_len - q_len):
        raise NotImplementedError("causality is aligned with the last key")


def visible(query: Any, kv_len: int, mask: Any, is_causal: bool, q_offset: Any) -> Any:
    """(B, H, q_len, kv_len) of what a query may attend; None where that is everything."""
    found = None if mask is None else whole(mask, query, kv_len)
    if is_causal:
        batch = query.shape[:-3]
        offset = torch.as_tensor(0 if q_offset is None else q_offset, device=query.device)
        offset = offset.expand(batch).reshape(-1, 1, 1, 1) if offset.ndim else offset
        places = torch.arange(query.shape[-2], device=query.device)[:, None] + offset
        seen = torch.arange(kv_len, device=query.device) <= places
        found = seen if found is None else found & seen
    return found


def gradients_of(forward: Callable[..., Any], given: Mapping[str, Any], grad_output: Any) -> dict[str, Any]:
    """Gradients of an output by those of its operands that are given."""
    leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
    with torch.enable_grad():
        output = forward(**leaves)
    return dict(zip(leaves, torch.autograd.grad(output, tuple(leaves.values()), grad_output), strict=True))
