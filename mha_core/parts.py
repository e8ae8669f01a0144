"""What is large, cut into parts that a processor's caches hold: batch entries, then heads and query rows."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from mha_core.arrays import number
from mha_core.options import Options, Sizes
from mha_core.result import Array
from mha_core.visibility import cut

PART_ELEMENTS = 2**18
"""Elements that a part holds, if it can be cut: 1 MiB in float32."""
PART_ROWS = 256
"""Query rows of a part, those of a group's heads counted together."""


class Part(NamedTuple):
    """Heads in the dtype to compute in, and the options as they apply to these."""

    query: Array
    """(..., H, q_len, d_k), not yet scaled."""
    key: Array
    """(..., G, kv_len, d_k)."""
    value: Array
    """(..., G, kv_len, d_v)."""
    options: Options
    sizes: Sizes

    @property
    def records(self) -> bool:
        """Whether the library records what is done to an operand that has a gradient (GRAD-2)."""
        if not hasattr(self.query, "requires_grad"):
            return False
        operands = (self.query, self.key, self.value, self.options.attn_bias, self.options.sinks)
        return any(x is not None and x.requires_grad for x in operands)

    @property
    def own_masks(self) -> bool:
        """Whether a mask or bias differs between heads."""
        masks = (self.options.mask, self.options.attn_bias)
        return any(x is not None and len(x.shape) > 2 and x.shape[-3] > 1 for x in masks)


def is_small(sizes: Sizes) -> bool:
    """Whether logits, keys and values fit a part together."""
    return _elements(sizes) <= PART_ELEMENTS


def _elements(sizes: Sizes) -> int:
    """How many logits, keys and values there are."""
    keys = sizes.num_kv_heads * (sizes.d_k + sizes.d_v)
    return math.prod(sizes.batch) * sizes.kv_len * (sizes.num_heads * sizes.q_len + keys)


def entry_parts(part: Part) -> Iterator[Part]:
    """The entries along the first batch axis: several at once where they are small, else without that axis."""
    entries, *inner = part.sizes.batch
    one = part.sizes._replace(batch=tuple(inner))
    step = PART_ELEMENTS // max(1, _elements(one))
    for start in range(0, entries, max(1, step)):
        stop = min(start + step, entries)
        at = start if step < 2 else slice(start, stop)
        sizes = one if step < 2 else one._replace(batch=(stop - start, *inner))
        query, key, value = (x[at, ...] for x in (part.query, part.key, part.value))
        yield Part(query, key, value, _options_at(part, at), sizes)


def unit_parts(xp: Any, part: Part) -> Iterator[tuple[slice, list[Part]]]:
    """Query rows, and the parts of the heads that they are computed for one after the other."""
    sizes = part.sizes
    part = _trimmed(xp, part)
    options, group = part.options, sizes.num_heads // sizes.num_kv_heads
    step = PART_ELEMENTS // max(1, group * sizes.q_len * part.sizes.kv_len)
    units = [
        _of_heads(part, slice(start, min(start + max(1, step), sizes.num_kv_heads)))
        for start in range(0, sizes.num_kv_heads, max(1, step))
    ]
    band = options.is_causal or options.window is not None  # of which fewer rows see fewer keys
    rows = max(
        1, (PART_ROWS if band else max(PART_ROWS, PART_ELEMENTS // max(1, part.sizes.kv_len))) // group
    )
    for start in range(0, sizes.q_len, rows):
        yield slice(start, min(start + rows, sizes.q_len)), units


def _options_at(part: Part, at: int | slice) -> Options:
    """The options of entries along the first batch axis."""
    options, rank = part.options, len(part.sizes.logits)

    def of_entry(x: Array | None) -> Array | None:
        if x is None or len(x.shape) < rank:
            return x
        if x.shape[0] == 1:
            return x[0, ...] if isinstance(at, int) else x
        return x[at, ...]

    def of_entries(x: Any) -> Any:
        return x[at, ...] if getattr(x, "shape", ()) else x

    return options._replace(
        mask=of_entry(options.mask),
        attn_bias=of_entry(options.attn_bias),
        q_offset=of_entries(options.q_offset),
        kv_lengths=of_entries(options.kv_lengths),
    )


def _trimmed(xp: Any, part: Part) -> Part:
    """One batch entry with its numbers as Python's, where they can be read, and without keys that do not exist."""
    options, sizes, key, value = part.options, part.sizes, part.key, part.value
    if sizes.batch or (options.q_offset is None and options.kv_lengths is None):
        return part
    options = options._replace(q_offset=number(options.q_offset))
    length = number(options.kv_lengths)
    if isinstance(length, int):
        kv_len = max(0, min(length, sizes.kv_len))
        everything, existing = slice(0, sizes.q_len), slice(0, kv_len)
        options = options._replace(
            kv_lengths=None,
            mask=None if options.mask is None else cut(options.mask, everything, existing),
            attn_bias=None if options.attn_bias is None else cut(options.attn_bias, everything, existing),
        )
        key, value, sizes = key[..., existing, :], value[..., existing, :], sizes._replace(kv_len=kv_len)
    return Part(part.query, key, value, options, sizes)


def _of_heads(part: Part, kv_heads: slice) -> Part:
    """The part of some key heads and of the query heads that read them."""
    options, sizes = part.options, part.sizes
    if kv_heads == slice(0, sizes.num_kv_heads):
        return part
    group = sizes.num_heads // sizes.num_kv_heads
    heads = slice(kv_heads.start * group, kv_heads.stop * group)

    def of_heads(x: Array | None) -> Array | None:
        return x if x is None or len(x.shape) < 3 or x.shape[-3] == 1 else x[..., heads, :, :]

    options = options._replace(
        mask=of_heads(options.mask),
        attn_bias=of_heads(options.attn_bias),
        sinks=None if options.sinks is None else options.sinks[heads],
    )
    sizes = sizes._replace(num_heads=heads.stop - heads.start, num_kv_heads=kv_heads.stop - kv_heads.start)
    return Part(
        part.query[..., heads, :, :],
        part.key[..., kv_heads, :, :],
        part.value[..., kv_heads, :, :],
        options,
        sizes,
    )
