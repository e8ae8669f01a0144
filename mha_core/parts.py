"""What is large, cut into pieces that a processor's caches hold: batch entries, then heads and query rows."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from mha_core.arrays import namespace_of, number
from mha_core.options import Options, Sizes
from mha_core.result import Array
from mha_core.visibility import cut

PART_ELEMENTS = 2**18
"""Elements that a part holds, if it can be cut: 1 MiB in float32."""
BLOCK_ELEMENTS = 2**19
"""Logits to hold at a time for all heads together where the weights are not asked for: 2 MiB in float32."""
BLOCK_ROWS = 32
"""Fewest query rows of a block: with fewer the matrix products are slow."""
PART_ROWS = 512
"""Query rows of a piece, those of a group's heads counted together."""
BAND_ROWS = 256
"""The same where fewer rows see fewer keys."""
PIECES = 8
"""Fewest blocks to cut a call into, if it can be cut: what threads share."""


class Part:
    """Heads in the dtype to compute in, and the options as they apply to these; never changed."""

    def __init__(self, query: Array, key: Array, value: Array, options: Options, sizes: Sizes) -> None:
        """Heads: query (..., H, q_len, d_k), not yet scaled; key (..., G, kv_len, d_k); value (..., G, kv_len, d_v)."""
        self.query, self.key, self.value, self.options, self.sizes = query, key, value, options, sizes

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

    @functools.cached_property
    def longest_key(self) -> float:
        """The Euclidean length of the longest key, of NumPy arrays; NaN or Inf where one holds it."""
        return longest(namespace_of(self.key), self.key)


class Piece:
    """Some query rows of a part; never changed."""

    def __init__(
        self, part: Part, rows: slice, at: tuple[Any, ...], shared: dict[Any, Any] | None = None
    ) -> None:
        """`at`: where its output lies in the whole; `shared`: what pieces of other heads of the rows have in common."""
        self.part, self.rows, self.at = part, rows, at
        self.shared: dict[Any, Any] = {} if shared is None else shared

    def once(self, make: Callable[..., Any], xp: Any) -> Any:
        """`make(xp, part, rows)`, made once for all that share it."""
        if make not in self.shared:
            self.shared[make] = make(xp, self.part, self.rows)
        return self.shared[make]


def longest(np: Any, x: Array) -> float:
    """The Euclidean length of the longest of some vectors, (..., d), of a NumPy array."""
    return math.sqrt(np.einsum("...d,...d->...", x, x).max(initial=0.0))


def pieces_of(xp: Any, part: Part) -> list[list[Piece]]:
    """A part in pieces, those together that share their query rows and may share masks."""
    return [group for entry, at in entries_of(xp, part) for group in _pieces_of_entry(entry, at)]


def entries_of(xp: Any, part: Part, at: tuple[Any, ...] = ()) -> Iterator[tuple[Part, tuple[Any, ...]]]:
    """Small parts of a few batch entries or one large entry each, and where these lie in the batch."""
    if is_small(part.sizes):
        yield part, at
    elif part.sizes.batch:
        for entry, place in _entries(part):
            yield from entries_of(xp, entry, (*at, place))
    else:
        yield _trimmed(xp, part), at


def units_of(part: Part) -> list[tuple[Part, tuple[Any, ...], tuple[Any, ...]]]:
    """The heads of an entry, one key head at a time or several, and where these lie among query and key heads."""
    sizes, group = part.sizes, part.sizes.num_heads // part.sizes.num_kv_heads
    if is_small(sizes):
        return [(part, (), ())]
    step = max(1, PART_ELEMENTS // max(1, group * sizes.q_len * sizes.kv_len))
    some = [slice(n, min(n + step, sizes.num_kv_heads)) for n in range(0, sizes.num_kv_heads, step)]
    return [(_of_heads(part, n), (slice(n.start * group, n.stop * group),), (n,)) for n in some]


def place_in(shape: tuple[int, ...], sizes: Sizes, at: tuple[Any, ...], columns: slice) -> tuple[Any, ...]:
    """Where what lies at `at` in the batch and among the heads finds its part of a mask or bias of that shape."""
    if len(shape) < len(sizes.logits):
        at = ()
    ones = {int: 0, slice: slice(None)}
    place = [ones[type(i)] if n == 1 else i for i, n in zip(at, shape, strict=False)]
    return (*place, ..., slice(None) if shape[-1] == 1 else columns)


def row_blocks(sizes: Sizes, whole: bool = False) -> list[slice]:
    """The query rows in blocks whose logits for all heads fit the budget, or all as one."""
    row_elements = math.prod(sizes.batch) * sizes.num_heads * sizes.kv_len
    if whole or row_elements * sizes.q_len <= BLOCK_ELEMENTS:
        return [slice(0, sizes.q_len)]
    step = max(BLOCK_ROWS, BLOCK_ELEMENTS // row_elements)
    return [slice(start, min(start + step, sizes.q_len)) for start in range(0, sizes.q_len, step)]


def is_small(sizes: Sizes) -> bool:
    """Whether logits, keys and values fit a part together."""
    return _elements(sizes) <= PART_ELEMENTS


def _elements(sizes: Sizes) -> int:
    """How many logits, keys and values there are."""
    keys = sizes.num_kv_heads * (sizes.d_k + sizes.d_v)
    return math.prod(sizes.batch) * sizes.kv_len * (sizes.num_heads * sizes.q_len + keys)


def _pieces_of_entry(part: Part, at: tuple[Any, ...]) -> Iterator[list[Piece]]:
    """The rows of an entry, for its heads one after the other or for several at once."""
    options, sizes, units = part.options, part.sizes, units_of(part)
    if is_small(sizes):
        yield [Piece(part, slice(0, sizes.q_len), (*at, ...))]
        return
    banded = options.is_causal or options.window is not None
    step = BAND_ROWS if banded else max(PART_ROWS, PART_ELEMENTS // max(1, sizes.kv_len))
    step = max(1, step * sizes.num_kv_heads // sizes.num_heads)
    blocks = [slice(start, min(start + step, sizes.q_len)) for start in range(0, sizes.q_len, step)]
    shares = min(len(units), -(-PIECES // len(blocks)))
    for rows in blocks:
        for share in range(shares):
            masks: dict[Any, Any] = {}
            yield [
                Piece(
                    unit,
                    rows,
                    (*at, *heads, rows, ...),
                    {} if part.own_masks else masks,  # asked of all heads: one alone has none of its own
                )
                for unit, heads, _ in units[share::shares]
            ]


def _entries(part: Part) -> Iterator[tuple[Part, int | slice]]:
    """The entries along the first batch axis: several at once where they are small, else without that axis."""
    entries, *inner = part.sizes.batch
    one = part.sizes._replace(batch=tuple(inner))
    step = PART_ELEMENTS // max(1, _elements(one))
    for start in range(0, entries, max(1, step)):
        stop = min(start + step, entries)
        at = start if step < 2 else slice(start, stop)
        sizes = one if step < 2 else one._replace(batch=(stop - start, *inner))
        query, key, value = (x[at, ...] for x in (part.query, part.key, part.value))
        yield Part(query, key, value, _options_at(part, at), sizes), at


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

    def of_rows(x: Array | None) -> Array | None:
        return x if x is None or len(x.shape) == 1 else x[at, ...]

    return options._replace(
        mask=of_entry(options.mask),
        attn_bias=of_entry(options.attn_bias),
        q_offset=of_entries(options.q_offset),
        kv_lengths=of_entries(options.kv_lengths),
        q_segments=of_rows(options.q_segments),
        kv_segments=of_rows(options.kv_segments),
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
            kv_segments=None if options.kv_segments is None else options.kv_segments[..., existing],
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
