"""Helpers for adapters: a kernel that takes less than the suite gives, made a target in a few lines.

They work on the arrays of NumPy, torch, JAX and any other library of the Array API, and import none of them.
What a kernel cannot do is refused with NotImplementedError, which the suite reports as `unsupported`.
"""

from collections.abc import Callable
from math import prod
from typing import Any

__all__ = ["flat4", "full_mask", "last_key", "one_mask", "refuse", "refuse_together", "repeat_heads"]


def flat4(*arrays: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """Arrays with one batch axis, and a function that gives a result the batch axes of the first one.

    Args:
        arrays: each (..., H, L, d), with the same batch axes or none.

    Returns:
        The arrays as (B, H, L, d), B = 1 where there is no batch axis; and a function from (B, ...) to (..., ...).

    Example:
        >>> (q, k, v), back = flat4(query, key, value)
        >>> return back(kernel(q, k, v))
    """
    batch = tuple(arrays[0].shape[:-3])

    def back(result: Any) -> Any:
        return _reshape(result, (*batch, *result.shape[1:]))

    return [_reshape(array, (prod(array.shape[:-3]), *array.shape[-3:])) for array in arrays], back


def full_mask(mask: Any, query: Any, key: Any) -> Any:
    """A mask or bias of any shape that broadcasts, as (B, H, q_len, kv_len).

    Args:
        mask: boolean or floating, (q_len, kv_len) or (..., H, q_len, kv_len), with axes of 1; None stays None.
        query: (..., H, q_len, d), before it was flattened.
        key: (..., G, kv_len, d).
    """
    if mask is None:
        return None
    full = (*query.shape[:-1], key.shape[-2])
    return _reshape(_broadcast(mask, full), (prod(full[:-3]), *full[-3:]))


def one_mask(mask: Any, attn_bias: Any) -> Any:
    """The mask or the bias, for a kernel with one argument for either; both together are refused."""
    refuse_together(mask=mask, attn_bias=attn_bias)
    return attn_bias if mask is None else mask


def repeat_heads(query: Any, *arrays: Any) -> list[Any]:
    """Key and value with as many heads as the query: query head h reads head h // (H // G).

    Args:
        query: (..., H, q_len, d).
        arrays: each (..., G, kv_len, d), G a divisor of H.
    """
    heads = query.shape[-3]
    return [_repeated(array, heads) for array in arrays]


def last_key(query: Any, key: Any, q_offset: Any) -> None:
    """Refuses a call whose last query is not at the last key, for a kernel whose causal mask ends there.

    Args:
        query: (..., q_len, d).
        key: (..., kv_len, d), with the past if there is one.
        q_offset: as the suite gives it; None means 0.
    """
    wanted = key.shape[-2] - query.shape[-2]
    if getattr(q_offset, "shape", ()) or int(q_offset or 0) != wanted:
        raise NotImplementedError(f"the causal mask ends at the last key: q_offset has to be {wanted}")


def refuse(**options: Any) -> None:
    """Refuses each option that is given, for a kernel without it: `refuse(window=window, softcap=softcap)`."""
    given = _given(options)
    if given:
        raise NotImplementedError(f"{' and '.join(given)} not supported")


def refuse_together(**options: Any) -> None:
    """Refuses options that are given together, for a kernel that takes one of them at a time."""
    given = _given(options)
    if len(given) > 1:
        raise NotImplementedError(f"{' and '.join(given)} not supported together")


def _given(options: dict[str, Any]) -> list[str]:
    return [name for name, value in options.items() if value is not None and value is not False]


def _repeated(array: Any, heads: int) -> Any:
    *batch, own, length, width = array.shape
    if own in (0, heads):
        return array
    wider = _broadcast(array[..., :, None, :, :], (*batch, own, heads // own, length, width))
    return _reshape(wider, (*batch, heads, length, width))


def _broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    if hasattr(array, "expand"):  # torch
        return array.expand(shape)
    return array.__array_namespace__().broadcast_to(array, shape)


def _reshape(array: Any, shape: tuple[int, ...]) -> Any:
    if hasattr(array, "reshape"):
        return array.reshape(shape)
    return array.__array_namespace__().reshape(array, shape)
