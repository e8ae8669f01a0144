"""Errors of sums, and of equal terms that round alike."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.vectors.generate.normal_form import Array, Bools

SUM_RMS = 0.4
"""RMS error of an n-term sum over u sqrt(n) |sum|, measured."""
SEVERAL = 2.0
"""Mean size of a group of weights that round alike, from which on it counts."""
FINEST = 2.0**-40
"""Logits that are closer count as equal even in float64, whose own roundings lie between."""


BLOCK = 8
"""Terms that long sums are formed of at once."""
AT_LENGTH = 1 << 18
"""Products of terms, from which on sums are formed by blocks."""
LONG = 1 << 20
"""Numbers of the values of a head, from which on float32 says enough of a variance."""
AT_ONCE = 1 << 17
"""Numbers that are held at once on the way: a cache's load."""
LANES = 64
"""Sums that one sum is formed of side by side, at most: what vector instructions hold, several of them at a time."""
IN_A_LANE = 16
"""Terms of a lane, from which on its roundings show beside others."""
COLUMNS = 1 << 10
"""Columns of a product that are looked at together."""
FEW = 1 << 12
"""Numbers that are grouped without a look at them first."""
SMALL = 1 << 14
"""Products of terms up to which all sums on the way are held at once."""
CANCELS = 2.0**-16
"""A sum that is so much smaller than its parts is formed otherwise."""


def sum_variance(
    unit: float, count: Array | float, squares: Array, total: Array, partial: Array | float = 0.0
) -> Array:
    """Variance of an n-term sum: squares = sum of squared terms, total = their sum, partial as below."""
    return unit**2 * np.maximum(SUM_RMS**2 * count * (squares + total**2), partial / 3)


def partial_sums(x: Array, y: Array) -> Array:
    """Of each element of x @ y, the sum of squares of what a sum comes to after each term, in the worst usual order.

    That is in order, in reverse, or in lanes that are added in the end. Terms in disorder make it n / 2 sum of squares
    or less; where they rise, come by sign or alternate, it is more.
    """
    return np.maximum(_one_after_another(x, y), _side_by_side(x, y))


def _side_by_side(x: Array, y: Array) -> Array:
    """The same where term j goes to lane j mod L, estimated from what each lane comes to, for the worst L."""
    lanes = min(LANES, x.shape[-1] // IN_A_LANE)
    found = np.zeros((*x.shape[:-1], y.shape[-1]))
    if lanes < 2:
        return found
    lanes = 1 << (lanes.bit_length() - 1)
    count = np.count_nonzero(x, axis=-1)[..., None]
    totals = _of_lanes(x, y, lanes)
    while lanes > 1:
        within = 3 * SUM_RMS**2 * count / lanes * (totals**2).sum(axis=0)
        found = np.maximum(found, within + (np.cumsum(totals, axis=0) ** 2).sum(axis=0))
        lanes //= 2
        totals = totals[:lanes] + totals[lanes:]
    return found


def _of_lanes(x: Array, y: Array, lanes: int) -> Array:
    """What each lane comes to, [lanes, ..., rows, columns]."""
    return np.stack([x[..., lane::lanes] @ y[..., lane::lanes, :] for lane in range(lanes)])


def _one_after_another(x: Array, y: Array) -> Array:
    """The same in order, or in reverse."""
    if x.shape[:-2] == y.shape[:-2] and x.shape[-2] * math.prod(y.shape[-2:]) > AT_LENGTH:
        whole = np.empty((*x.shape[:-1], y.shape[-1]))
        for place in np.ndindex(*x.shape[:-2]):
            whole[place] = _partial_sums_by_blocks(x[place], y[place])
        return whole
    total = x @ y
    if 0 < x.shape[-1] * total.size <= SMALL:
        after = np.cumsum(x[..., :, None, :] * np.swapaxes(y, -1, -2)[..., None, :, :], axis=-1)
        before = np.concatenate([np.zeros_like(after[..., :1]), after[..., :-1]], axis=-1)
        return np.maximum(_in_order(after**2), _in_order((total[..., None] - before) ** 2))
    first, forward, backward = np.zeros_like(total), np.zeros_like(total), np.zeros_like(total)
    for k in range(x.shape[-1]):
        backward += (total - first) ** 2
        first += x[..., :, k, None] * y[..., k, None, :]
        forward += first**2
    return np.maximum(forward, backward)


def _in_order(terms: Array) -> Array:
    """The sum over the last axis, one after another: its bits are those of the loop."""
    return np.asarray(np.cumsum(terms, axis=-1)[..., -1])


def _partial_sums_by_blocks(x: Array, y: Array) -> Array:
    """The same by matrix products. Squares in reverse follow from those in order.

    Within a block the squares are a quadratic form of its terms. No square cancels: what is formed is at most
    a small multiple of the larger sum.
    """
    count, total = x.shape[1], x @ y
    first, forward = np.zeros_like(total), np.zeros_like(total)
    whole = count // BLOCK * BLOCK
    for start in range(0, y.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        _squares_in_order(x[:, :whole], y[:whole, columns], first[:, columns], forward[:, columns])
    for k in range(whole, count):
        first += x[:, k, None] * y[k]
        forward += first**2
    backward = (count - 1) * total**2 + forward - 2 * total * ((x * (count - 1.0 - np.arange(count))) @ y)
    return np.maximum(forward, backward)


def _squares_in_order(x: Array, y: Array, first: Array, forward: Array) -> None:
    """Adds whole blocks of terms to the sums, and to the sums of their squares."""
    left, right = np.triu_indices(BLOCK)
    # the sum of squares of the sums within a block holds the product of two terms so many times
    times = (BLOCK - right) * np.where(left == right, 1.0, 2.0)
    falling = 2.0 * (BLOCK - np.arange(BLOCK))
    step = max(1, AT_ONCE // max(1, first.size, len(times) * max(first.shape))) * BLOCK
    for start in range(0, x.shape[1], step):
        of_x = x[:, start : start + step].reshape(x.shape[0], -1, BLOCK).swapaxes(0, 1)
        of_y = y[start : start + step].reshape(-1, BLOCK, y.shape[1])
        squares = (of_x[..., left] * (of_x[..., right] * times)).swapaxes(0, 1).reshape(x.shape[0], -1)
        forward += squares @ (of_y[:, left] * of_y[:, right]).reshape(-1, y.shape[1])
        for sums, rising in zip(of_x @ of_y, (of_x * falling) @ of_y, strict=True):
            rising += BLOCK * first
            rising *= first
            forward += rising
            first += sums


@dataclass(frozen=True)
class Ties:
    """Which keys of each query row have one and the same logit: their roundings are equal, not independent."""

    group: npt.NDArray[np.intp]  # [rows, kv_len]
    any: bool
    coherence: Array  # [rows, 1], mean size of a key's group: 1 without ties, n where all are equal
    largest: float = 1.0  # RMS of the error of a group over that of one key

    def spread(self, weights: Array, values: Array, centre: Array | None = None) -> Array:
        """The variance of the sum over keys of weights (values - centre) times errors of variance one, [rows, width].

        weights is [rows, kv_len], values [kv_len, width], centre [rows, width]. The larger of two readings:
        every error on its own, or one error for each group of equal logits.
        """
        alone = _sums_of_squares(weights, values, centre)
        if not self.any:
            return alone
        together = alone.copy()
        kind: type[np.floating[Any]] = np.float32 if values.size > LONG else np.float64
        held = values.astype(kind, copy=False)
        for i, (of_row, groups) in enumerate(zip(weights, self.group, strict=True)):
            keys = np.flatnonzero(of_row)
            if not len(keys):
                continue
            tied = np.bincount(groups[keys])[groups[keys]] > 1
            most = 2 * tied.sum() > len(keys)  # then alone is no part of it
            keys = keys if most else keys[tied]
            if not len(keys):
                continue
            keys = keys[np.argsort(groups[keys], kind="stable")]
            starts = np.flatnonzero(np.diff(groups[keys], prepend=-1))
            terms = held[keys]
            if centre is not None:
                terms -= centre[i].astype(kind)
            terms *= of_row[keys, None].astype(kind)
            sums = (np.add.reduceat(terms, starts, axis=0) ** 2).sum(axis=0)
            together[i] = sums if most else together[i] + sums - (terms**2).sum(axis=0)
        return np.maximum(alone, self.largest**2 * together)


def _sums_of_squares(weights: Array, values: Array, centre: Array | None) -> Array:
    """Over keys, of weights (values - centre)."""
    squared = weights**2
    if centre is None:
        return squared @ values**2
    found = np.empty_like(centre)
    rows = np.arange(len(weights))
    if weights.shape[0] * values.size > AT_LENGTH:
        middle = values.mean(axis=0)
        moved, to = values - middle, centre - middle
        parts = squared @ moved**2, -2 * to * (squared @ moved), to**2 * squared.sum(axis=-1, keepdims=True)
        found = parts[0] + parts[1] + parts[2]
        # where the three cancel, once more without
        rows = np.flatnonzero((found < CANCELS * sum(np.abs(x) for x in parts)).any(axis=-1))
    for i in rows:
        found[i] = squared[i] @ (values - centre[i]) ** 2
    return found


def ties(logits: Array, visible: Bools, unit: float) -> Ties:
    """Groups the keys of each row whose weights are too close for a rounding of one unit to tell them apart.

    logits and visible are [rows, kv_len]. A group spans a quarter of the unit (spec/bounds.md).
    """
    width = max(unit / 4, FINEST)
    order = np.argsort(np.where(visible, logits, np.inf), axis=-1)  # hidden keys last
    ordered = np.take_along_axis(logits, order, axis=-1)
    seen = np.take_along_axis(visible, order, axis=-1)
    starts = seen.copy()  # a new group at each key that is not close to the one before it
    starts[:, 1:] &= ~(ordered[:, 1:] <= ordered[:, :-1] + width)
    coherence = np.ones((logits.shape[0], 1))
    tied = np.flatnonzero((starts != seen).any(axis=-1))
    for i in tied:
        keys = ordered[i, seen[i]]
        _split(starts[i, : len(keys)], np.searchsorted(keys, keys + width, side="right"))
        sizes = np.diff(np.append(np.flatnonzero(starts[i]), len(keys)))
        coherence[i] = (sizes**2).sum() / sizes.sum()
    group = np.zeros(logits.shape, dtype=np.intp)
    np.put_along_axis(group, order, np.where(seen, np.cumsum(starts, axis=-1) - 1, 0), axis=-1)
    return Ties(group, bool(len(tied)), coherence)


def _split(starts: Bools, behind: npt.NDArray[np.intp]) -> None:
    """Cuts chains of close keys into groups; behind is the first key that is too far from each to be in its group."""
    ends = np.append(np.flatnonzero(starts[1:]) + 1, len(starts))
    begins = np.flatnonzero(starts)
    long = ends - begins > 2  # two that are close are one group
    for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
        place = behind[begin]
        while place < end:
            starts[place] = True
            place = behind[place]


def sum_coherence(logits: Array, visible: Bools, unit: float) -> Array:
    """Mean size of the groups of keys whose weights a sum over the row rounds alike, [rows, 1].

    What n terms come to is rounded n times as coarsely as one of them.
    """
    count = max(1, int(visible.sum(axis=-1).max(initial=1)))
    return ties(logits, visible, count * unit).coherence


@dataclass(frozen=True)
class Alike:
    """Which weights may have one and the same error when they are rounded, in whatever row they stand."""

    group: npt.NDArray[np.intp]  # as the weights: which error each has
    any: bool  # whether groups of several are the rule
    largest: float  # RMS of an error over that of a rounding: sqrt(3), its largest size, where most share one

    @property
    def transposed(self) -> "Alike":
        """Of the weights with keys before rows."""
        return Alike(self.group.swapaxes(-1, -2), self.any, self.largest)


def alike_in_all(logarithms: Array, visible: Bools, unit: float) -> Alike:
    """Groups weights of any shape. A group spans `unit` as a relative distance: where in it they lie decides."""
    found = ties(logarithms.reshape(1, -1), visible.reshape(1, -1), 4 * unit)
    size = float(found.coherence[0, 0])
    shared = size >= max(SEVERAL, visible.sum() / 2)
    return Alike(found.group.reshape(visible.shape), size >= SEVERAL, float(np.sqrt(3)) if shared else 1.0)


def largest_error(logarithms: Array, visible: Bools, unit: float) -> float:
    """`alike_in_all(...).largest`: most share one error only where half of all lie within a unit of the median."""
    numbers = logarithms[visible]
    if numbers.size > FEW:
        half = (numbers.size - 1) // 2
        middle = np.partition(numbers, (half, half + 1))[half : half + 2]
        if all((np.abs(numbers - x) <= 2 * max(unit, FINEST)).sum() < numbers.size / 2 for x in middle):
            return 1.0
    return alike_in_all(logarithms, visible, unit).largest


def last_rounding(result: Array, unit: float) -> Array:
    """What the RMS of the last rounding lacks where most elements of a result are one number, and round alike."""
    size = np.where(np.isfinite(result), np.abs(result), 0.0)
    numbers = size[size > 0]
    largest = largest_error(np.log(numbers), np.ones(numbers.shape, dtype=np.bool_), unit)
    return unit * np.sqrt((largest**2 - 1) / 3) * size
