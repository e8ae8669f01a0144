"""Wrong results that are the right ones in another way: times a number, or the right ones of another place."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from conformance.diagnosis.agree import Wrong
from conformance.diagnosis.facts import sizes
from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Note
from conformance.dtypes import UNIT_ROUNDOFF
from conformance.names import DENSE
from conformance.vectors.case import Array, Case, Golden

ENOUGH = 2
"""Cases that show it."""
MOST = 0.5
"""The share of the failing rows of a result that have to show it."""
NUMBERS = 3
"""Numbers of a result below which a factor may be chance."""
ROUNDED = 16
"""Units in the last place that a result may be off beside the factor."""
ELEMENTS = 2**24
"""Numbers that may be compared to find each row elsewhere."""
AXES = {0: "batch entry", 1: "head", 2: "query"}


def by_relation(failures: Sequence[Failure], policy: str) -> list[Note]:
    """What is said of each result that is wrong in the same way in most of the rows in which it is wrong."""
    of: dict[tuple[bool, str], list[tuple[Failure, Array, Golden]]] = {}
    for failure in failures:
        if failure.outputs is not None and not failure.case.raises:
            for name, (right, held, golden) in Wrong(failure, policy).rights.items():
                if not right.all():
                    key = failure.case.gradients, failure.case.label(name)
                    of.setdefault(key, []).append((failure, held, golden))
    found = []
    for (_, label), wrong in of.items():
        note = _times(label, wrong) or (_displaced(wrong) if label == "output" else None)
        found += [note] if note else []
    return found


def _times(label: str, wrong: Sequence[tuple[Failure, Array, Golden]]) -> Note | None:
    """A factor that has a name."""
    fitting: dict[str, list[Failure]] = {}
    for failure, held, golden in wrong:
        factor = _factor(held, golden.hi, ROUNDED * UNIT_ROUNDOFF[failure.dtype])
        for words, number in _named(label, failure.case) if factor is not None else ():
            if factor is not None and abs(factor - number) <= 1e-3 * abs(number):
                fitting.setdefault(words, []).append(failure)
    words, most = max(fitting.items(), key=lambda each: len(each[1]), default=("", []))
    if len({f.case.id for f in most}) < ENOUGH or len(most) < MOST * len(wrong):
        return None
    covers = tuple(dict.fromkeys(name for f in most for name in f.case.covers))
    requirement = ("ATT-14",) if label == "lse" else covers[:1]
    return Note("times", f"Your {label} is the right one {words}", requirement, tuple(most), first=True)


def _factor(held: Array, right: Array, relative: float) -> float | None:
    """What all numbers of a result are times the right ones; None where they are no multiple."""
    numbers = np.isfinite(right) & (right != 0)
    if (np.isnan(held) != np.isnan(right)).any() or (np.isfinite(held) != np.isfinite(right)).any():
        return None
    if numbers.sum() < NUMBERS or (held[np.isfinite(right) & (right == 0)] != 0).any():
        return None
    got, wanted = held[numbers], right[numbers]
    factor = float((got * wanted).sum() / (wanted * wanted).sum())  # by least squares
    near = np.abs(got - factor * wanted) <= relative * max(abs(factor), 1) * np.abs(wanted).max()
    return factor if near.all() and abs(factor - 1) > 4 * relative else None


def _named(label: str, case: Case) -> Iterator[tuple[str, float]]:
    """Factors in words."""
    if label == "lse":
        yield "times log2(e): it is a logarithm to base 2", 1 / math.log(2)
    else:
        yield "times log2(e)", 1 / math.log(2)
    yield "times ln(2)", math.log(2)
    yield "with the other sign", -1.0
    yield "twice", 2.0
    yield "halved", 0.5
    if case.operation not in DENSE:
        return
    size = sizes(case)
    scale = float(case.options.get("scale", size["d_k"] ** -0.5 if size["d_k"] else 1.0))
    for words, number in (
        ("times the scale", scale),
        ("divided by the scale", 1 / scale if scale else 0.0),
        ("times the number of query heads of a key head", float(size["group"])),
        ("divided by the number of query heads of a key head", 1 / max(size["group"], 1)),
        ("times the number of heads", float(size["heads"])),
        ("divided by the number of heads", 1 / max(size["heads"], 1)),
        ("divided by the number of keys", 1 / max(size["kv_len"], 1)),
        ("times the number of keys", float(size["kv_len"])),
        ("divided by the number of batch entries", 1 / max(size["batch"], 1)),
    ):
        if number not in (0.0, 1.0):
            yield words, number


def _displaced(wrong: Sequence[tuple[Failure, Array, Golden]]) -> Note | None:
    """Rows of the output that are the right ones of another place."""
    told: dict[int, list[Failure]] = {}
    for failure, held, golden in wrong:
        axis = _moved(held, golden, failure)
        if axis is not None:
            told.setdefault(axis, []).append(failure)
    axis, most = max(told.items(), key=lambda each: len(each[1]), default=(0, []))
    if len({f.case.id for f in most}) < ENOUGH or len(most) < MOST * len(wrong):
        return None
    said = (
        f"The wrong rows of your output are the right ones of another {AXES[axis]}: "
        "they are written to another place, or all that they are made of is read there"
    )
    return Note("displaced", said, ("ATT-1",), tuple(most), first=True)


def _moved(held: Array, golden: Golden, failure: Failure) -> int | None:
    """The axis along which each wrong row is the right one of another place; None where that is not so."""
    if held.ndim < 4 or failure.case.gradients:
        return None
    shape = (-1, *held.shape[-3:])
    got, right = held.reshape(shape), golden.hi.reshape(shape)  # (B, H, q_len, d_v)
    limit = ROUNDED * UNIT_ROUNDOFF[failure.dtype] * float(np.abs(right[np.isfinite(right)]).max(initial=0))
    if not limit or got.size * max(got.shape[:3]) > ELEMENTS:
        return None
    bad = (~(np.abs(got - right) <= limit)).any(axis=-1) & ~(np.isnan(got) & np.isnan(right)).all(axis=-1)
    if (got[bad] == 0).all(axis=-1).any():  # rows of nothing are those of no place
        return None
    for axis in AXES:
        other = np.moveaxis(right, axis, 0)[:, None]  # (n, 1, ...) against every place along the axis
        near = (np.abs(np.moveaxis(got, axis, 0)[None] - other) <= limit).all(axis=-1).any(axis=0)
        if bad.any() and np.moveaxis(near, 0, axis)[bad].all() and not _alike(right, axis, limit):
            return axis
    return None


def _alike(right: Array, axis: int, limit: float) -> bool:
    """Whether right rows are the same along an axis, so that any of them may be meant."""
    first = np.take(right, [0], axis=axis)
    return bool((np.abs(right - first) <= limit).all())
