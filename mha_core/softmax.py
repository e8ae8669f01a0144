"""From products of queries and keys to weights: softcap, bias, mask, a safe softmax with sinks."""

import math
from typing import Any, NamedTuple

from mha_core.arrays import beside, cast, cast_bias, finite, is_traced, known_finite, without_derivative
from mha_core.heads import grouped, ungrouped
from mha_core.options import Options, Sizes
from mha_core.result import Array
from mha_core.visibility import cut


class Softmax(NamedTuple):
    """The softmax of a block of rows."""

    weights: Array
    """(..., H, rows, columns)."""
    lse: Array
    """(..., H, rows), the log of the denominator."""
    sink_weights: Array | None = None
    """(..., H, rows, 1), what the sinks take; None without them."""
    occupied: Array | None = None
    """Which rows see a key, broadcasting to (..., H, rows, 1); None for all."""


def products(xp: Any, x: Array, y: Array, sizes: Sizes) -> Array:
    """Each row of (..., H, rows, d) times each of its group's (..., G, columns, d): (..., H, rows, columns)."""
    if x.shape[-1] == 1 and is_traced(
        xp, x
    ):  # a compiler fuses a product alone with the subtraction after it, and
        x, y = (
            xp.concat([z, xp.zeros_like(z)], axis=-1) for z in (x, y)
        )  # unrounded, 1e30 less itself is not 0
    return ungrouped(xp, xp.matmul(grouped(xp, x, sizes), xp.matrix_transpose(y)), sizes)


def logits_of(xp: Any, query: Array, key: Array, sizes: Sizes, visible: Array | None) -> Array:
    """The products of queries and keys, in whose derivative 0 times NaN or Inf is 0 (GRAD-9).

    Where an operand may be either, the finite parts are multiplied, and what the others make of a visible
    product is added: as a constant, which comparisons tell.
    """
    raw = products(xp, query, key, sizes)
    if visible is None or (known_finite(xp, query) and known_finite(xp, key)):
        return raw
    constant = xp.zeros_like(raw)
    for kind, number in (
        (raw == math.inf, math.inf),
        (raw == -math.inf, -math.inf),
        (xp.isnan(raw), math.nan),
    ):
        constant = xp.where(xp.logical_and(kind, visible), number, constant)
    return products(xp, finite(xp, query), finite(xp, key), sizes) + constant


def weighted_sums(xp: Any, weights: Array, y: Array, sizes: Sizes) -> Array:
    """The sums of (..., G, columns, d) by (..., H, rows, columns): (..., H, rows, d)."""
    return ungrouped(xp, xp.matmul(grouped(xp, weights, sizes), y), sizes)


def capped(xp: Any, logits: Array, options: Options) -> tuple[Array, Array | None]:
    """The logits after softcap, and the tanh that it took, None without it (ATT-5)."""
    if options.softcap is None:
        return logits, None
    cap = float(options.softcap)
    tanh = xp.tanh(logits / cap)
    return cap * tanh, tanh


def attended(
    xp: Any, logits: Array, options: Options, visible: Array | None, rows: slice, columns: slice
) -> tuple[Softmax, Array | None]:
    """The softmax of a block of scaled products, capped and biased, and the tanh of the cap (ATT-6, ATT-7)."""
    logits, tanh = capped(xp, logits, options)
    if options.attn_bias is not None:
        logits = logits + cast_bias(xp, cut(options.attn_bias, rows, columns), logits.dtype)
    return softmax(xp, logits, options.sinks, visible), tanh


def softmax(xp: Any, logits: Array, sinks: Array | None, visible: Array | None) -> Softmax:
    """The softmax over the visible keys, the sinks (H,) in its denominator (ATT-2, ATT-12, ATT-14).

    Selections come before what could give NaN, so that its derivative is 0 where they hide (GRAD-3, GRAD-4).
    """
    if logits.shape[-1] == 0:  # MASK-14
        lse = xp.full((*logits.shape[:-1], 1), -math.inf, dtype=logits.dtype, **beside(logits))
        if sinks is None:
            return Softmax(logits, lse[..., 0])
        empty = of_empty_rows(xp, xp.reshape(cast(xp, sinks, logits.dtype), (-1, 1, 1)))
        return Softmax(logits, xp.broadcast_to(empty, lse.shape)[..., 0], xp.zeros_like(lse))
    occupied, empty = None, -math.inf  # the lse of an empty row
    if visible is not None:
        occupied = xp.any(visible, axis=-1, keepdims=True)  # decided on masks alone (MASK-15)
        logits = xp.where(visible, logits, -math.inf)  # selected, so that a masked NaN is gone (MASK-4)
    highest = xp.max(logits, axis=-1, keepdims=True)  # (..., H, rows, 1)
    if sinks is not None:
        sinks = xp.reshape(cast(xp, sinks, logits.dtype), (-1, 1, 1))  # one more column (ATT-6)
        empty = of_empty_rows(xp, sinks)
        sinks = sinks if occupied is None else xp.where(occupied, sinks, -math.inf)
        highest = xp.maximum(highest, sinks)
    if occupied is not None:
        highest = xp.where(occupied, highest, 0.0)  # visible logits that are all -Inf make NaN (MASK-15)
    highest = without_derivative(xp, highest)
    exponentials = xp.exp(logits - highest)
    total = xp.sum(exponentials, axis=-1, keepdims=True)
    drained = None
    if sinks is not None:
        drained = xp.exp(sinks - highest)
        total = total + drained  # ATT-12
    if occupied is not None:
        total = xp.where(occupied, total, 1.0)  # MASK-3
    lse = highest + xp.log(total)
    if occupied is not None:
        lse = xp.where(occupied, lse, empty)  # MASK-16
    return Softmax(exponentials / total, lse[..., 0], None if drained is None else drained / total, occupied)


def of_empty_rows(xp: Any, sinks: Array) -> Array:
    """The lse of an empty row, (H, 1, 1): the sink (MASK-16), without a derivative where that is -inf (GRAD-16)."""
    return xp.where(sinks != -math.inf, sinks, -math.inf)
