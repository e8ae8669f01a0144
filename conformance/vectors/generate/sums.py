"""Errors of sums, and of equal terms that round alike."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.vectors.generate.problem import Array, Bools

SUM_RMS = 0.4
"""RMS error of an n-term sum over u sqrt(n) |sum|, measured."""
SEVERAL = 2.0
"""Mean size of a group of weights that round alike, from which on it counts."""
FINEST = 2.0**-40
"""Logits that are closer count as equal even in float64, whose own roundings lie between."""


def sum_variance(
    unit: float, count: Array | float, squares: Array, total: Array, partial: Array | float = 0.0
) -> Array:
    """Variance of an n-term sum: squares = sum of squared terms, total = their sum, partial as below."""
    return unit**2 * np.maximum(SUM_RMS**2 * count * (squares + total**2), partial / 3)


def partial_sums(x: Array, y: Array) -> Array:
    """Of each element of x @ y, the sum of squares of what a sum in order, or in reverse, comes to after each term.

    Terms in disorder make it n / 2 sum of squares or less; where they rise, or come by sign, it is more.
    """
    total = x @ y
    first, forward, backward = np.zeros_like(total), np.zeros_like(total), np.zeros_like(total)
    for k in range(x.shape[-1]):
        backward += (total - first) ** 2
        first += x[..., :, k, None] * y[..., k, None, :]
        forward += first**2
    return np.maximum(forward, backward)


@dataclass(frozen=True)
class Ties:
    """Which keys of each query row have one and the same logit: their roundings are equal, not independent."""

    group: npt.NDArray[np.intp]  # [rows, kv_len]
    any: bool
    coherence: Array  # [rows, 1], mean size of a key's group: 1 without ties, n where all are equal
    largest: float = 1.0  # RMS of the error of a group over that of one key

    def spread(self, terms: Array) -> Array:
        """The variance of the sum over keys of terms [rows, kv_len, width] times errors of variance one.

        The larger of two readings: every error on its own, or one error for each group of equal logits.
        """
        alone = np.einsum("nmo,nmo->no", terms, terms)
        if not self.any:
            return alone
        together = np.zeros_like(alone)
        for i, groups in enumerate(self.group):
            sums = np.zeros((groups.max(initial=-1) + 1, terms.shape[2]))
            np.add.at(sums, groups, terms[i])
            together[i] = (sums**2).sum(axis=0)
        return np.maximum(alone, self.largest**2 * together)


def ties(logits: Array, visible: Bools, unit: float) -> Ties:
    """Groups the keys of each row whose weights are too close for a rounding of one unit to tell them apart.

    logits and visible are [rows, kv_len]. A group spans a quarter of the unit (spec/numerics.md).
    """
    width = max(unit / 4, FINEST)
    order = np.lexsort((logits, ~visible), axis=-1)  # hidden keys last
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
    ends = np.append(np.flatnonzero(starts[1:]) + 1, len(starts)).tolist()
    for begin, end in zip(np.flatnonzero(starts).tolist(), ends, strict=True):
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


def last_rounding(result: Array, unit: float) -> Array:
    """What the RMS of the last rounding lacks where most elements of a result are one number, and round alike."""
    size = np.where(np.isfinite(result), np.abs(result), 0.0)
    numbers = size[size > 0]
    largest = alike_in_all(np.log(numbers), np.ones(numbers.shape, dtype=np.bool_), unit).largest
    return unit * np.sqrt((largest**2 - 1) / 3) * size
