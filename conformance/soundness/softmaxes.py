"""Arrangements of the softmax and of the average of the values: all of them mean the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.soundness.style import Roundings
from conformance.vectors.case import Array

LOG2_E = 1.4426950408889634
LARGEST_BOUND = 30.0
"""A bound in place of the maximum must not make every exponential vanish."""


@dataclass(frozen=True)
class Rows:
    """What is left once the logits are there. Arrays over [..., H, q_len, kv_len] or broadcastable to it."""

    round: Roundings
    logits: Array  # -inf where hidden
    visible: Array
    value: Array  # [..., H, kv_len, d_v]
    sink: Array | None  # [H, 1, 1]
    bound: Array | None  # no logit or sink is above it; None where it is not known or too large

    @property
    def some(self) -> Array:
        """Whether a row sees any key."""
        return np.asarray(self.visible.any(axis=-1, keepdims=True))

    @property
    def top(self) -> Array:
        """The largest logit or sink; 0 where there is none."""
        top = self.logits.max(axis=-1, keepdims=True, initial=-np.inf)
        if self.sink is not None:
            top = np.maximum(top, self.sink)
        return np.where(np.isneginf(top), 0, top).astype(self.round.wide)

    def raised(self, top: Array) -> Array:
        """Exponentials of what is below the top."""
        return self.round.store(self.round.function("exp", self.round.store(self.logits - top)))

    def total(self, raised: Array, top: Array) -> Array:
        """The denominator, 1 where nothing counts."""
        order = self.round.style.average
        summed = raised.sum(axis=-1, keepdims=True)
        if order in ("sequential", "reverse"):
            ones = np.ones((*raised.shape[:-2], raised.shape[-1], 1), self.round.wide)
            summed = self.round.product(order, raised, ones)
        if self.sink is not None:
            summed = summed + self.round.store(self.round.function("exp", self.round.store(self.sink - top)))
        return np.where(self.counted, summed, self.round.wide(1))

    @property
    def counted(self) -> Array:
        """Rows whose denominator has a term: a key, or the sink (MASK-16). [..., H, q_len, 1]."""
        return self.some if self.sink is None else self.some | np.isfinite(self.sink)

    def lse(self, top: Array, total: Array) -> Array:
        """The log of the denominator; -inf for a row without a term. [..., H, q_len]."""
        total = np.where(total == 0, self.round.wide(np.nan), total)  # visible logits are all -inf (MASK-15)
        found = np.where(self.counted, top + self.round.function("log", total), self.round.wide(-np.inf))
        return found[..., 0]

    def averaged(self, weights: Array) -> Array:
        """The values by weights that are rounded once."""
        return self.round.product(self.round.style.average, self.round.narrow(weights), self.value)


Result = tuple[Array, Array, Array]
"""Heads, weights, lse."""


def plain(r: Rows) -> Result:
    """Exponentials, normalised, then the average."""
    return _normalised(r, r.raised(r.top), r.top)


def base_two(r: Rows) -> Result:
    """With exp2 and logits times log2(e)."""
    top, log2_e = r.top, r.round.wide(LOG2_E)
    if r.round.style.eager:
        return _normalised(
            r, r.round.store(r.round.function("exp2", r.round.store(r.logits - top) * log2_e)), top
        )
    return _normalised(r, r.round.function("exp2", r.logits * log2_e - top * log2_e), top)


def of_logarithms(r: Rows) -> Result:
    """The log of each weight first, as log_softmax gives it: less the maximum, then less the log of the sum."""
    top = r.top
    total = r.total(r.raised(top), top)
    fall = r.round.store((r.logits - top) - r.round.function("log", total))
    weights = r.round.store(r.round.function("exp", fall))
    return r.averaged(weights), weights, r.lse(top, total)


def below_a_bound(r: Rows) -> Result:
    """A bound of the logits by the norms of query and keys in place of their maximum."""
    top = r.top if r.bound is None else r.bound
    return _normalised(r, r.raised(top), top)


def unnormalised(r: Rows) -> Result:
    """The average of the exponentials, divided afterwards."""
    raised = r.raised(r.top)
    total = r.total(raised, r.top)
    denominator = r.round.store(total)
    return r.averaged(raised) / denominator, _share(r, raised, denominator), r.lse(r.top, total)


def by_reciprocal(r: Rows) -> Result:
    """The same, multiplied by the reciprocal."""
    raised = r.raised(r.top)
    total = r.total(raised, r.top)
    return r.averaged(raised) * (1 / total), _share(r, raised, total), r.lse(r.top, total)


def sum_of_rounded(r: Rows) -> Result:
    """The same, with the output's denominator summed from the rounded exponentials."""
    raised = r.raised(r.top)
    total = r.total(raised, r.top)
    rounded = r.round.narrow(raised)
    return r.averaged(rounded) / r.total(rounded, r.top), _share(r, raised, total), r.lse(r.top, total)


def online(r: Rows) -> Result:
    """Blocks of keys with a running maximum; the sink comes last."""
    top: Array = np.full(r.top.shape, -np.inf, r.round.wide)
    total = np.zeros_like(top)
    heads: Array = np.zeros((*top.shape[:-1], r.value.shape[-1]), r.round.wide)
    for begin in range(0, r.logits.shape[-1], r.round.style.block):
        part = slice(begin, begin + r.round.style.block)
        rise = np.maximum(top, r.logits[..., part].max(axis=-1, keepdims=True))
        factor, base = _step(r, top, rise)
        raised = r.round.function("exp", r.logits[..., part] - base)
        total = total * factor + raised.sum(axis=-1, keepdims=True)
        heads = heads * factor + r.round.narrow(raised) @ r.value[..., part, :]
        top = rise
    if r.sink is not None:
        rise = np.maximum(top, r.sink)
        factor, base = _step(r, top, rise)
        total, heads, top = total * factor + r.round.function("exp", r.sink - base), heads * factor, rise
    top = np.where(np.isneginf(top), 0, top).astype(r.round.wide)
    total = np.where(r.some, total, r.round.wide(1))
    return heads / total, _share(r, r.round.function("exp", r.logits - top), total), r.lse(top, total)


def split(r: Rows) -> Result:
    """Blocks of keys on their own, merged by their lse; the sink is a block without values."""
    parts, logs = [], []
    for begin in range(0, r.logits.shape[-1], r.round.style.block):
        part = slice(begin, begin + r.round.style.block)
        top = r.logits[..., part].max(axis=-1, keepdims=True)
        top = np.where(np.isneginf(top), 0, top).astype(r.round.wide)
        raised = r.round.function("exp", r.logits[..., part] - top)
        total = raised.sum(axis=-1, keepdims=True)
        parts.append(r.round.narrow(raised) @ r.value[..., part, :] / np.where(total > 0, total, 1))
        logs.append(np.where(total > 0, top + r.round.function("log", total), r.round.wide(-np.inf)))
    if not parts:
        return plain(r)
    if r.sink is not None:
        logs.append(np.broadcast_to(r.sink, r.top.shape))
        parts.append(np.zeros_like(parts[0]))
    top = r.top
    shares = r.round.function("exp", np.stack(logs) - top)
    total = np.where(r.some, shares.sum(axis=0), r.round.wide(1))
    heads = (np.stack(parts) * (shares / total)).sum(axis=0)
    return heads, _share(r, r.round.function("exp", r.logits - top), total), r.lse(top, total)


SOFTMAXES: Mapping[str, Callable[[Rows], Result]] = {
    "plain": plain,
    "base two": base_two,
    "of logarithms": of_logarithms,
    "below a bound": below_a_bound,
    "unnormalised": unnormalised,
    "by reciprocal": by_reciprocal,
    "sum of rounded": sum_of_rounded,
    "online": online,
    "split": split,
}
"""By name."""


def _normalised(r: Rows, raised: Array, top: Array) -> Result:
    total = r.total(raised, top)
    denominator = r.round.store(total)
    if r.round.style.reciprocal:
        weights = np.where(r.visible, raised * r.round.store(1 / denominator), r.round.wide(0))
    else:
        weights = _share(r, raised, denominator)
    return r.averaged(weights), weights, r.lse(top, total)


def _share(r: Rows, raised: Array, total: Array) -> Array:
    return np.where(r.visible, raised / total, r.round.wide(0))


def _step(r: Rows, top: Array, rise: Array) -> tuple[Array, Array]:
    """What is kept of the sum so far, and what the new exponentials are taken below."""
    base = np.where(np.isneginf(rise), 0, rise).astype(top.dtype)
    return np.where(np.isneginf(top), 0, r.round.function("exp", top - base)).astype(top.dtype), base
