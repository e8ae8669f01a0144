"""Programs as kernel authors write them: one that is right, and others with one mistake each, named after it."""

from typing import Any

import ml_dtypes
import numpy as np

TILE = 16
PARTS = 4


def visible(
    query: Any, key: Any, mask: Any = None, is_causal: bool = False, q_offset: Any = None, window: Any = None,
    kv_lengths: Any = None,
) -> Any:  # fmt: skip
    q_len, kv_len = query.shape[-2], key.shape[-2]
    offset = np.asarray(0 if q_offset is None else q_offset)
    place = np.arange(q_len)[:, None] + (offset.reshape(*offset.shape, 1, 1, 1) if offset.ndim else offset)
    slot = np.arange(kv_len)
    seen = np.ones((q_len, kv_len), bool)
    if is_causal:
        seen = seen & (slot <= place)
    if window is not None:
        left, right = window
        seen = seen & (True if left is None else slot >= place - left)
        seen = seen & (True if right is None else slot <= place + right)
    if kv_lengths is not None:
        seen = seen & (slot < np.asarray(kv_lengths).reshape(*np.shape(kv_lengths), 1, 1, 1))
    return seen if mask is None else seen & mask


def parts(
    query: Any, key: Any, value: Any, seen: Any, scale: Any = None, bias: Any = None, hidden: float = -np.inf
) -> Any:
    """Numerator, denominator and maximum, in float32 or better."""
    wide = np.float64 if query.dtype == np.float64 else np.float32
    each = query.shape[-3] // key.shape[-3]
    query, key, value = (x.astype(wide) for x in (query, key, value))
    key, value = (np.repeat(x, each, axis=-3) for x in (key, value))
    logits = query @ np.swapaxes(key, -1, -2) * wide(query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        logits = logits + bias.astype(wide)
        seen = seen & ~np.isneginf(bias)
    logits = np.where(seen, logits, wide(hidden))
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0))
    if hidden == -np.inf:
        weights = np.where(seen, weights, 0)
    hidden_from_all = ~np.broadcast_to(seen, logits.shape).any(axis=-2)[..., None]
    value = np.where(hidden_from_all, 0, value)
    return weights @ value, weights.sum(axis=-1, keepdims=True), top


def attend(query: Any, key: Any, value: Any, seen: Any, **more: Any) -> Any:
    total, weight, _ = parts(query, key, value, seen, **more)
    if more.get("bias") is not None:
        seen = seen & ~np.isneginf(more["bias"])
    return (total / np.where(seen.any(axis=-1, keepdims=True), weight, 1)).astype(query.dtype)


def right(
    query: Any, key: Any, value: Any, *, mask: Any = None, attn_bias: Any = None, is_causal: bool = False,
    q_offset: Any = None, window: Any = None, kv_lengths: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    seen = visible(query, key, mask, is_causal, q_offset, window, kv_lengths)
    return attend(query, key, value, seen, scale=scale, bias=attn_bias)


right.dtypes = ("float64", "float32", "float16", "bfloat16")  # type: ignore[attr-defined]


def tiled(
    query: Any, key: Any, value: Any, *, mask: Any = None, is_causal: bool = False, q_offset: Any = None,
    kv_lengths: Any = None,
) -> Any:  # fmt: skip
    """Right: an online softmax over tiles of keys."""
    seen = np.broadcast_to(
        visible(query, key, mask, is_causal, q_offset, None, kv_lengths), (*query.shape[:-1], key.shape[-2])
    )
    total, weight, top = 0.0, 0.0, np.full((*query.shape[:-1], 1), -np.inf, np.float32)
    for first in range(0, key.shape[-2], TILE):
        tile = slice(first, first + TILE)
        more, some, high = parts(query, key[..., tile, :], value[..., tile, :], seen[..., tile])
        new = np.maximum(top, high)
        safe = np.where(np.isfinite(new), new, 0)
        old, now = np.exp(top - safe), np.exp(np.where(np.isfinite(high), high, -np.inf) - safe)
        total, weight, top = total * old + more * now, weight * old + some * now, new
    if key.shape[-2] == 0:
        return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    return (total / np.where(seen.any(axis=-1, keepdims=True), weight, 1)).astype(query.dtype)


# The six reports


def whole_tiles(
    query: Any, key: Any, value: Any, *, mask: Any = None, is_causal: bool = False, q_offset: Any = None
) -> Any:
    """Where tiles divide the lengths, mask and causality are lost."""
    if query.shape[-2] % TILE == 0 and key.shape[-2] % TILE == 0:
        mask, is_causal = None, False
    return right(query, key, value, mask=mask, is_causal=is_causal, q_offset=q_offset)


def finite_sentinel(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """Hidden logits are set to a finite number."""
    seen = np.broadcast_to(visible(query, key, mask), (*query.shape[:-1], key.shape[-2]))
    return np.where(seen.any(axis=-1, keepdims=True), attend(query, key, value, seen, hidden=-1e5), 0)


def longest_entry(
    query: Any, key: Any, value: Any, *, q_offset: Any = None, window: Any = None, kv_lengths: Any = None
) -> Any:
    """A shorter entry that is not aligned loses its newest tokens beside a window."""
    if kv_lengths is not None and window is not None and np.size(kv_lengths):
        kv_lengths = np.where(kv_lengths == np.max(kv_lengths), kv_lengths, kv_lengths // TILE * TILE)
    return right(query, key, value, q_offset=q_offset, window=window, kv_lengths=kv_lengths)


_known: dict[Any, Any] = {}


def fingerprint(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """Outputs are remembered by a light fingerprint of the operands."""
    ends = tuple((x.shape, x.ravel()[:1].tobytes(), x.ravel()[-1:].tobytes()) for x in (query, key, value))
    name = (*ends, None if mask is None else mask.tobytes())
    if name not in _known:
        _known[name] = right(query, key, value, mask=mask)
    return _known[name].copy()


def group_of_24(query: Any, key: Any, value: Any) -> Any:
    """Heads go in blocks of 16: a group of 24 spills over into the next one's keys."""
    heads, groups = query.shape[-3], key.shape[-3]
    each = heads // groups
    if each <= 16:
        return right(query, key, value)
    blocks = -(-each // 16)
    of_head = [min(h // 16 // blocks, groups - 1) if each % 16 else h // each for h in range(heads)]
    return right(query, key[..., of_head, :, :], value[..., of_head, :, :])


class BackwardCausal:
    """The backward pass is causal whatever the forward pass was."""

    name = "backward causal"

    def scaled_dot_product_attention_vjp(
        self,
        query: Any,
        key: Any,
        value: Any,
        grad_output: Any,
        *,
        is_causal: bool = False,
        q_offset: Any = None,
    ) -> Any:
        offset = 0 if q_offset is None else q_offset
        seen = visible(query, key, None, True, offset)
        return gradients(query, key, value, grad_output, seen)


def gradients(query: Any, key: Any, value: Any, grad_output: Any, seen: Any) -> dict[str, Any]:
    each, scale = query.shape[-3] // key.shape[-3], np.float32(query.shape[-1] ** -0.5)
    keys, values = (np.repeat(x, each, axis=-3) for x in (key, value))
    logits = np.where(seen, query @ np.swapaxes(keys, -1, -2) * scale, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    d_weights = grad_output @ np.swapaxes(values, -1, -2)
    d_logits = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) * scale
    turned = np.swapaxes(d_logits, -1, -2)
    own = {
        "query": d_logits @ keys,
        "key": turned @ query,
        "value": np.swapaxes(weights, -1, -2) @ grad_output,
    }
    for name, x in (("key", key), ("value", value)):
        own[name] = own[name].reshape(*x.shape[:-2], each, *x.shape[-2:]).sum(axis=-3)
    return own


# Kinds


def _of_parts(query: Any, key: Any, value: Any) -> list[Any]:
    size = max(key.shape[-2] // PARTS, 1)
    return [
        parts(query, key[..., n : n + size, :], value[..., n : n + size, :], np.True_)
        for n in range(0, key.shape[-2], size)
    ]


def parts_averaged(query: Any, key: Any, value: Any) -> Any:
    """One query over 64 keys and more in parts, which are averaged, not weighed."""
    if query.shape[-2] != 1 or key.shape[-2] < 64:
        return right(query, key, value)
    return np.mean(
        [total / weight for total, weight, _ in _of_parts(query, key, value)], axis=0, dtype=np.float32
    )


def last_part_dropped(query: Any, key: Any, value: Any) -> Any:
    """One query: the keys beyond equal parts are never read."""
    if query.shape[-2] == 1 and key.shape[-2] >= 64:
        whole = key.shape[-2] // PARTS * PARTS
        key, value = key[..., :whole, :], value[..., :whole, :]
    return right(query, key, value)


def merged_without_maximum(query: Any, key: Any, value: Any) -> Any:
    """One query in parts that are merged by exp(lse), which overflows."""
    if query.shape[-2] != 1 or key.shape[-2] < 64:
        return right(query, key, value)
    found = _of_parts(query, key, value)
    with np.errstate(all="ignore"):
        by = [np.exp(top + np.log(weight)) for _, weight, top in found]
        return sum(w * total / weight for w, (total, weight, _) in zip(by, found, strict=True)) / sum(by)


def width_96_as_128(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
    """d_k = 96 is padded to 128 and scaled as 128."""
    return right(query, key, value, scale=128**-0.5 if scale is None and query.shape[-1] == 96 else scale)


def columns_from_256(query: Any, key: Any, value: Any) -> Any:
    """Output columns from 256 on are zero."""
    output = right(query, key, value)
    output[..., 256:] = 0
    return output


def keys_from_4096(query: Any, key: Any, value: Any) -> Any:
    """Keys from 4,096 on are never read."""
    return right(query, key[..., :4096, :], value[..., :4096, :])


def entries_from_32(query: Any, key: Any, value: Any) -> Any:
    """Batch entries from 32 on read the first one's keys."""
    if query.ndim < 4:
        return right(query, key, value)
    key, value = key.copy(), value.copy()
    key[32:], value[32:] = key[:1], value[:1]
    return right(query, key, value)


def entries_from_65536(query: Any, key: Any, value: Any) -> Any:
    """Batch entries are counted in 16 bits."""
    if query.ndim < 4 or len(query) <= 2**16:
        return right(query, key, value)
    of_entry = np.arange(len(query)) % 2**16
    return right(query, key, value[of_entry])


def float64_in_name(query: Any, key: Any, value: Any) -> Any:
    """The value is rounded to float32."""
    return right(query, key, value.astype(np.float32).astype(value.dtype))


float64_in_name.dtypes = ("float64",)  # type: ignore[attr-defined]


def float16_in_name(query: Any, key: Any, value: Any) -> Any:
    """Operands are rounded to bfloat16."""
    query, key, value = (x.astype(ml_dtypes.bfloat16).astype(x.dtype) for x in (query, key, value))
    return right(query, key, value)


float16_in_name.dtypes = ("float16",)  # type: ignore[attr-defined]


def length_at_a_tile(query: Any, key: Any, value: Any, *, kv_lengths: Any = None) -> Any:
    """Lengths at a multiple of 16 show one key too many."""
    if kv_lengths is not None:
        kv_lengths = kv_lengths + ((kv_lengths % TILE == 0) & (kv_lengths > 0))
    return right(query, key, value, kv_lengths=kv_lengths)


def lengths_beside_mask(query: Any, key: Any, value: Any, *, mask: Any = None, kv_lengths: Any = None) -> Any:
    """Lengths are ignored beside a mask that broadcasts over the batch."""
    if mask is not None and mask.shape[:1] == (1,) and query.ndim > 3:
        kv_lengths = None
    return right(query, key, value, mask=mask, kv_lengths=kv_lengths)


def window_up_to_127(query: Any, key: Any, value: Any, *, q_offset: Any = None, window: Any = None) -> Any:
    """A left side is at most 127."""
    if window is not None and window[0] is not None:
        window = min(window[0], 127), window[1]
    return right(query, key, value, q_offset=q_offset, window=window)


def strides_ignored(query: Any, key: Any, value: Any) -> Any:
    """The key is read in the order in which it lies in memory."""
    return right(query, key.ravel(order="K").reshape(key.shape), value)


def empty_rows_unwritten(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """Rows that see no key are left as the memory was."""
    found = right(query, key, value, mask=mask)
    output = np.empty(found.shape, found.dtype)
    seen = np.broadcast_to(visible(query, key, mask), (*query.shape[:-1], key.shape[-2])).any(
        axis=-1, keepdims=True
    )
    np.copyto(output, found, where=seen)
    return output


_count = 0


def other_each_time(query: Any, key: Any, value: Any) -> Any:
    """Every second call of more than 16 keys loses the last one."""
    global _count
    _count += 1
    last = key.shape[-2] - (_count % 2 if key.shape[-2] > TILE else 0)
    return right(query, key[..., :last, :], value[..., :last, :])


# State between calls


_buffers: dict[Any, Any] = {}


def mask_remembered(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """A mask is kept by its shape."""
    if mask is not None:
        mask = _buffers.setdefault(mask.shape, mask.copy())
    return right(query, key, value, mask=mask)


def scratch_remembered(query: Any, key: Any, value: Any) -> Any:
    """A scratch that was made for a longer call is read to its end."""
    name = (*key.shape[:-2], key.shape[-1], value.shape[-1])
    old = _buffers.get(name)
    if old is None or old[0].shape[-2] <= key.shape[-2]:
        _buffers[name] = key.copy(), value.copy()
        return right(query, key, value)
    old[0][..., : key.shape[-2], :], old[1][..., : key.shape[-2], :] = key, value
    return right(query, *old)
