"""Ways of being wrong that several kinds of defects share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.defect import Change
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array


def dropped(*names: str, when: Callable[[Call], Any] = lambda c: True) -> Change:
    """Options that are treated as not given."""
    return {"accept": lambda c: replace(c, **dict.fromkeys(names)) if when(c) else c}


def back(change: Any) -> Change:
    """A change that acts on the way back only."""
    return {"compute_gradients": lambda s, c: R.compute_gradients(replace(s, **change), c)}


def only(change: Change, when: Callable[[Call], Any]) -> Change:
    """A change that acts under a condition."""

    def either(step: str) -> Callable[..., Any]:
        def chosen(*given: Any) -> Any:
            c = next(x for x in given if isinstance(x, Call))
            return (change[step] if when(c) else getattr(R, step))(*given)

        return chosen

    return {step: either(step) for step in change}


def refuse(when: Callable[[Call], Any], why: str) -> Change:
    """A call that is refused under a condition."""

    def accept(c: Call) -> Call:
        if when(c):
            raise ValueError(why)
        return c

    return {"accept": accept}


def after(
    step: str, change: Callable[[Call, Any], Any], when: Callable[[Call], Any] = lambda c: True
) -> Change:
    """A step whose result is changed afterwards, under a condition."""

    def changed(*given: Any) -> Any:
        c = next(x for x in given if isinstance(x, Call))
        found = getattr(R, step)(*given)
        return change(c, found) if found is not None and when(c) else found

    return {step: changed}


def output(
    change: Callable[[Call, Any], Any], *names: str, when: Callable[[Call], Any] = lambda c: True
) -> Change:
    """Results that are changed at the very end; all if none is named."""
    return after(
        "finish",
        lambda c, o: {n: change(c, x) if not names or n in names else x for n, x in o.items()},
        when,
    )


def weighed(change: Callable[[Call, Array, Array], Array]) -> Change:
    """Weights that are changed before they meet the values: c, weights, visible -> weights."""
    return {"normalise": lambda c, e, total, visible: change(c, R.normalise(c, e, total, visible), visible)}


def logits(change: Callable[[Call, Array], Array]) -> Change:
    """Logits that are changed before the softmax."""
    return {"bias": lambda c, x: change(c, R.bias(c, x))}


def products(change: Callable[[Call, Array], Array]) -> Change:
    """Scaled products that are changed before the softcap."""
    return {"score": lambda c, q, k, scale: change(c, R.score(c, q, k, scale))}


def shown(
    step: str, change: Callable[[Call, Any], Any], when: Callable[[Call], Any] = lambda c: True
) -> Change:
    """What one rule of visibility shows, changed."""
    return after(step, change, when)


def first(axis: int) -> Callable[[Call, Array], Array]:
    """The first entry along an axis stands for all of them, where the axis exists."""
    return lambda c, x: x if x is None or x.ndim < -axis or not x.shape[axis] else np.take(x, [0], axis)


def rounded(array: Array, dtype: str) -> Array:
    """An array rounded to a narrower dtype, and widened again."""
    with np.errstate(all="ignore"):
        return array.astype(np.float32).astype(dtype).astype(array.dtype)


def cut(array: Array, bits: int) -> Array:
    """A float32 array whose last bits are cut off."""
    whole = np.ascontiguousarray(array, np.float32)
    return (
        (whole.view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF))
        .view(np.float32)
        .astype(array.dtype)
    )


def online(
    size: int,
    rescales: Callable[[int, int], bool] = lambda begin, kv_len: True,
    rescales_sum: bool = True,
    guarded: bool = True,
    reach: Callable[[int], int] = lambda kv_len: kv_len,
) -> Change:
    """A softmax in blocks of keys with a running maximum; the arguments are what may be wrong with it."""

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        hidden = np.where(visible, logits, c.wide(-np.inf))
        raised = np.zeros_like(hidden)
        top = np.full((*hidden.shape[:-1], 1), c.wide(-np.inf))
        total = np.zeros_like(top)
        for begin in range(0, reach(c.kv_len), size):
            part = (..., slice(begin, min(begin + size, reach(c.kv_len))))
            rise = np.maximum(top, hidden[part].max(axis=-1, keepdims=True))
            base = np.where(np.isneginf(rise), c.wide(0), rise) if guarded else rise
            factor = np.exp(top - base)
            block = np.exp(hidden[part] - base)
            if rescales(begin, c.kv_len):
                raised *= factor
            total = total * (factor if rescales_sum else 1) + block.sum(axis=-1, keepdims=True)
            raised[part] = block
            top = rise
        rise = R.peak(c, logits, visible)  # the sink comes last, as one more block
        factor = np.exp(top - rise)
        total = R.total(c, np.zeros_like(raised), rise) + total * factor
        return R.normalise(c, raised * factor, total, visible), R.log(c, total, rise, visible)

    return {"softmax": softmax}


def turned(c: Call, x: Array) -> Any:
    """The last two axes exchanged, where the result still broadcasts."""
    rows, columns = x.shape[-2:]
    return x.swapaxes(-1, -2) if rows in (1, c.kv_len) and columns in (1, c.q_len) else x
