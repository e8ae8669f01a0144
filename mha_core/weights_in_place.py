"""Weights computed by NumPy in place, where logits are shown to be small.

No logit is larger than the longest query times the longest key. Where that, or for few rows a look at the logits,
keeps all of them within BOUND, their exponentials neither overflow nor underflow: none is shifted.
What is hidden is multiplied by 0 after the exponential, which is 10 times slower at -inf. `exp2` takes half the time
of `exp`; log2(e) is a factor of the scale. NaN and Inf, even behind a mask, show in the bound or in what follows.
"""

import functools
import math
from typing import Any, NamedTuple

from mha_core.arrays import cast, cast_bias
from mha_core.heads import grouped
from mha_core.options import scale_of
from mha_core.parts import Part, longest
from mha_core.result import Array
from mha_core.visibility import Band, band_of, columns_in_tiles, cut, masked_in

LOG2_E = 1 / math.log(2)
BOUND = 43.0
"""Largest logit in base 2: a weight from 2**-43 to 2**43 loses nothing to underflow, nor do its sums overflow."""
LARGEST_SUM = 1e18
"""Sums up to here stay finite when they are divided by a total of at least 2**-BOUND."""
FEW_LOGITS = 2**12
"""Logits up to which a sum of squares is the quicker look."""
FEW_ROWS = 64
"""Fewer query rows than this cost less to look at than the keys do to measure."""


class Tile(NamedTuple):
    """Some keys that some rows see."""

    columns: slice
    visible: Array | None
    """1 or 0, broadcasting to (..., H, rows, columns); None where all are visible."""
    bias: Array | None
    """In base 2, broadcasting likewise, 0 where it hides."""
    largest: float
    """The bias of largest magnitude."""

    @property
    def width(self) -> int:
        """The number of keys."""
        return self.columns.stop - self.columns.start


def tiles_of(np: Any, part: Part, rows: slice, width: int) -> list[Tile]:
    """The keys that some rows see, in tiles with their masks."""
    options, sizes = part.options, part.sizes
    if not options.hides and sizes.kv_len <= width:
        return [Tile(slice(0, sizes.kv_len), None, None, 0.0)] if sizes.kv_len else []
    band = band_of(np, options, sizes, part.query)
    return [_tile(np, part, band, rows, columns) for columns in columns_in_tiles(band, sizes, rows, width)]


def _tile(np: Any, part: Part, band: Band, rows: slice, columns: slice) -> Tile:
    """A tile with its masks; a bias of -Inf is one too."""
    options, dtype = part.options, part.query.dtype
    visible = masked_in(np, options, part.sizes, band, rows, columns, part.query)
    bias, largest = None, 0.0
    if options.attn_bias is not None:
        bias = cast_bias(np, cut(options.attn_bias, rows, columns), dtype)
        if bias.min() == -math.inf:
            seen = bias != -math.inf
            bias = np.where(seen, bias, 0.0)
            visible = seen if visible is None else np.logical_and(visible, seen)
        bias = bias * LOG2_E
        largest = max(float(bias.max()), -float(bias.min()))
    return Tile(columns, None if visible is None else cast(np, visible, dtype), bias, largest)


def scaled(np: Any, part: Part, rows: slice) -> Array:
    """Some query rows times the scale, in base 2 unless a softcap comes first: (..., G, H // G * rows, d_k)."""
    base = LOG2_E if part.options.softcap is None else 1.0
    number, some = rows.stop - rows.start, part.query
    if number != part.sizes.q_len:
        some = some[..., rows, :]
    return grouped(np, some * (scale_of(part.options, part.sizes) * base), part.sizes.with_rows(number))


def bound_of(np: Any, query: Array, part: Part) -> float:
    """What no product of scaled query and key exceeds in magnitude; NaN or Inf where that is not known."""
    options = part.options
    bound = math.inf
    if query.shape[-2] >= FEW_ROWS:
        bound = longest(np, query) * part.longest_key * 1.01 + 1e-9
    return bound if options.softcap is None else min(bound, float(options.softcap)) * LOG2_E


def weights_of(
    np: Any, place: Array | None, query: Array, part: Part, tile: Tile, bound: float
) -> Array | None:
    """The weights of a tile, not normalised, (..., G, H // G * rows, columns), in their place where that is given.

    None where they may overflow.
    """
    key = part.key
    if tile.width != part.sizes.kv_len:
        key = key[..., tile.columns, :]
    key = key.swapaxes(-1, -2)
    logits = query @ key if place is None else np.matmul(query, key, out=place)
    cap = part.options.softcap
    if cap is not None:
        np.divide(logits, cap, out=logits)
        np.tanh(logits, out=logits)
        np.multiply(logits, cap * LOG2_E, out=logits)
    heads = logits
    if tile.bias is not None or tile.visible is not None:
        *_, num_kv_heads, rows, columns = logits.shape
        rows = rows * num_kv_heads // part.sizes.num_heads
        heads = logits.reshape((*part.sizes.batch, part.sizes.num_heads, rows, columns))
    if tile.bias is not None:
        np.add(heads, tile.bias, out=heads)
    if not bound + tile.largest <= BOUND and not _within(np, logits):
        return None
    np.exp2(logits, out=logits)
    if tile.visible is not None:
        np.multiply(heads, tile.visible, out=heads)
    return logits


def _within(np: Any, logits: Array) -> bool:
    """Whether no logit exceeds BOUND in magnitude; False for NaN."""
    if logits.size <= FEW_LOGITS and logits.flags.c_contiguous:  # one call in place of two
        flat = logits.reshape(-1)
        if np.dot(flat, flat) <= BOUND**2:
            return True
    return bool(logits.max() <= BOUND and logits.min() >= -BOUND)


@functools.lru_cache(maxsize=64)
def ones(np: Any, dtype: Any, length: int) -> Array:
    """A column of ones."""
    return np.ones((length, 1), dtype=dtype)


def sinks_in(np: Any, part: Part) -> Array | None:
    """What the sinks add to the totals, (H, 1, 1); None where that may overflow."""
    sinks = np.reshape(cast(np, part.options.sinks, part.query.dtype), (-1, 1, 1)) * LOG2_E
    return np.exp2(sinks) if sinks.max() <= BOUND else None


def is_ordinary(np: Any, sums: Array) -> bool:
    """Whether sums, in an array without gaps, are finite and far from overflow."""
    flat = sums.reshape(-1)
    return bool(np.dot(flat, flat) <= LARGEST_SUM**2)
