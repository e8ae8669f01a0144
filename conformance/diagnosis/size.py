"""Numbers that are wrong in their accuracy alone, told by the size of their errors: digits depend on orders of sums."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.facts import sizes
from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.finding import Note
from conformance.dtypes import UNIT_ROUNDOFF, cast
from conformance.judging.measure import allowed, held_rows, kinds
from conformance.names import REDUCED_POLICIES
from conformance.vectors.case import Array

NARROWER: Mapping[str, tuple[str, ...]] = {
    "float64": ("float16", "bfloat16"),
    "float32": ("float16", "bfloat16"),
    "float16": ("bfloat16",),
    "bfloat16": (),
}
"""The dtypes that results may be stored in by mistake, the widest first; float32 is what they are computed in then."""
MOST = 0.7
"""The share of the inaccurate rows of a dtype that a narrower tolerance has to admit: of the bank's roundings it admits
0.76 or more, of other mistakes of few digits 0.62 or less but for those that make results too small; a second mistake
takes some."""
NEARLY = 0.9
"""The share of what the widest tolerance admits that a narrower one has to admit: of the bank's roundings to bfloat16
those of TF32 admit 0.87 or less, their own all."""
MANY = 0.2
"""The share of the executed rows of a dtype that have to be inaccurate: fewer are a mistake of their own."""
FEWEST = 4
"""Rows and numbers below which nothing is told by their size."""
CUT = 0.98
"""The share of the inaccurate numbers that are nearer to zero than the right ones, where they are cut."""
TOO_SMALL = (
    "Your inaccurate {dtype} results are nearer to zero than the right ones: "
    "something is added to the denominator, or weights are lost"
)
LONGER = 3.0
"""By how much failing rows have more keys than passing ones where a sum of the keys is what loses accuracy."""


@dataclass(frozen=True)
class Off:
    """A failing row of which only the accuracy is wrong; arrays by output, of the shape of Golden.hi."""

    failure: Failure
    got: Mapping[str, Array]  # float64

    def within(self, dtype: str, policy: str) -> bool:
        """Whether it would pass, element by element, by the bounds of a dtype and policy."""
        for name, got in self.got.items():
            golden = self.failure.case.expected[name]
            bounds = golden.bounds.get(dtype, {})
            if policy not in bounds:
                return False
            finite = np.isfinite(golden.hi)
            if not (np.abs(got - golden.hi)[finite] <= allowed(bounds[policy])[finite]).all():
                return False
        return True

    def wrong(self, policy: str) -> Iterator[tuple[Array, Array]]:
        """What came and what is right, of the numbers that are too far off."""
        for name, got in self.got.items():
            golden = self.failure.case.expected[name]
            limit = allowed(golden.bounds[self.failure.dtype][policy])
            far = np.isfinite(golden.hi) & ~(np.abs(got - golden.hi) <= limit)
            yield got[far], golden.hi[far]

    def stored(self, narrow: str, policy: str) -> bool:
        """Whether each inaccurate output holds numbers of a narrower dtype alone, as near as it can hold them."""
        for name, got in self.got.items():
            golden = self.failure.case.expected[name]
            finite = np.isfinite(golden.hi)
            off, right = np.abs(got - golden.hi)[finite], np.abs(golden.hi[finite])
            if (off <= allowed(golden.bounds[self.failure.dtype][policy])[finite]).all():
                continue
            with np.errstate(all="ignore"):
                same = cast(got[finite], narrow).astype(np.float64) == got[finite]
            if not (same & (off <= 3 * UNIT_ROUNDOFF[narrow] * right + 2.0**-24)).all():
                return False
        return True


def by_size(failures: Sequence[Failure], passes: Sequence[Asked], policy: str) -> list[Note]:
    """What is said of each dtype at which many rows are inaccurate, and nothing else is wrong with them."""
    found = []
    for dtype in dict.fromkeys(f.dtype for f in failures):
        off = [each for f in failures if f.dtype == dtype and (each := _off(f)) is not None]
        rows = sum(f.dtype == dtype for f in failures) + sum(
            f.dtype == dtype and not f.case.raises for f in passes
        )
        if len({each.failure.case.id for each in off}) < FEWEST:
            continue
        note = _stored(off, dtype, policy)
        if note is None and len(off) >= MANY * rows:
            note = _narrower(off, dtype, policy)
        note = note or _summed(off, [f for f in passes if f.dtype == dtype], dtype)
        if note is not None:
            found.append(note)
    return found


def _off(failure: Failure) -> Off | None:
    """The row, if names, shapes, dtypes and what is not finite are right."""
    if failure.outputs is None or failure.case.raises or set(failure.outputs) != set(failure.case.expected):
        return None
    got = {}
    for name, array in failure.outputs.items():
        golden = failure.case.expected[name]
        if array.shape != golden.shape or (array.dtype.name != failure.dtype and name != "lse"):
            return None
        held = held_rows(name, golden, array).astype(np.float64)
        if (kinds(held) != kinds(golden.hi)).any():
            return None
        got[name] = held
    return Off(failure, got)


def _stored(off: Sequence[Off], dtype: str, policy: str) -> Note | None:
    """Results that are numbers of a narrower dtype, every one of them."""
    policy = off[0].failure.case.policy(dtype, policy)
    for narrow in reversed(NARROWER[dtype]):
        those = [each for each in off if each.stored(narrow, policy)]
        if len(those) >= MOST * len(off):
            break
    else:
        return None
    pairs = [pair for each in those for pair in each.wrong(policy)]
    got, right = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
    if len(got) < FEWEST:
        return None
    cut = len(got) >= 2 * FEWEST and (np.abs(got) <= np.abs(right)).mean() >= CUT
    how = "cut off, not rounded" if cut else "rounded to it"
    return Note(
        f"stored-in-{narrow}",
        f"Each of your inaccurate {dtype} results holds {narrow} numbers only: it is {how}",
        ("NUM-1", "DTYPE-1"),
        tuple(each.failure for each in those),
        beside=len(off) - len(those),
    )


def _narrower(off: Sequence[Off], dtype: str, policy: str) -> Note | None:
    """Results within the tolerance of a narrower dtype or of a policy that rounds more."""
    every = [
        (tuple(each.failure for each in off if each.within(name, key)), kind, said, ids)
        for kind, name, key, said, ids in _candidates(dtype, policy)
    ]
    most = max((len(inside) for inside, *_ in every), default=0)
    for inside, kind, said, ids in every:
        if len(inside) >= max(MOST * len(off), NEARLY * most):
            if _shrunk(off, policy):  # roundings go either way
                kind, said, ids = (
                    "shrunk",
                    TOO_SMALL.format(dtype=dtype),
                    ("softmax-epsilon", "softmax-large-epsilon"),
                )
            return Note(f"size-of-{kind}", said, ("NUM-1",), inside, ids=ids, beside=len(off) - len(inside))
    return None


def _shrunk(off: Sequence[Off], policy: str) -> bool:
    """Whether nearly every number that is too far off is nearer to zero than the right one."""
    policy = off[0].failure.case.policy(off[0].failure.dtype, policy)
    pairs = [pair for each in off for pair in each.wrong(policy)]
    got, right = (np.abs(np.concatenate([pair[n] for pair in pairs])) for n in (0, 1))
    return len(got) >= 2 * FEWEST and bool((got <= right).mean() >= CUT)


def _candidates(dtype: str, policy: str) -> Iterator[tuple[str, str, str, str, tuple[str, ...]]]:
    """A word, dtype and policy of a bound, what it says if it is met, and the mistakes of the bank that this may be."""
    if dtype == "float64":
        said = "Your float64 results are as accurate as float32: something is computed in float32"
        yield (
            "float32",
            "float32",
            "eager",
            said,
            ("everything-float32-in-float64", "softmax-float32-in-float64"),
        )
    if dtype in ("float64", "float32"):
        for reduced in REDUCED_POLICIES if policy not in REDUCED_POLICIES else ():
            what = "bfloat16" if reduced == "bf16x1" else "float16 or TF32"
            said = (
                f"Your {dtype} results meet the tolerance of `{reduced}`: something on the way, "
                f"operands, weights or sums, has no more bits than {what}"
            )
            yield reduced, "float32", reduced, said, _reduced(what)
    if dtype == "float16":
        said = "Your float16 results are as accurate as bfloat16: something is rounded to bfloat16"
        yield "bfloat16", "bfloat16", "eager", said, ("operands-in-bfloat16", "weights-in-bfloat16")
    if policy == "fused" and dtype in ("float16", "bfloat16"):
        yield (
            "eager", dtype, "eager",
            f"Your {dtype} results meet the tolerance of `eager`: something is rounded to {dtype} between two steps",
            (),
        )  # fmt: skip


def _reduced(what: str) -> tuple[str, ...]:
    dtypes = ("bfloat16",) if what == "bfloat16" else ("float16",)
    return tuple(f"{step}-in-{dtype}" for dtype in dtypes for step in ("operands", "logits", "weights"))


def _summed(off: Sequence[Off], passes: Iterable[Asked], dtype: str) -> Note | None:
    """Errors of 16-bit calls that grow with the number of keys, and stay within those of a sum of so many terms."""
    if dtype not in ("float16", "bfloat16"):
        return None
    keys = [sizes(each.failure.case)["kv_len"] for each in off]
    others = [sizes(asked.case)["kv_len"] for asked in passes if not asked.case.raises]
    if not others or np.median(keys) < LONGER * np.median(others):
        return None
    for each, length in zip(off, keys, strict=True):
        for name, got in each.got.items():
            right = each.failure.case.expected[name].hi
            finite = np.isfinite(right)
            most = float(np.abs(right[finite]).max(initial=0))
            if (np.abs(got - right)[finite] > length * UNIT_ROUNDOFF[dtype] * max(most, 2.0**-10)).any():
                return None
    return Note(
        "summed-in-16-bits",
        f"The errors of your {dtype} results grow with the number of keys, as if sums were kept in {dtype}",
        ("NUM-3",),
        tuple(each.failure for each in off),
        ids=("average-summed-in-16-bits", "denominator-summed-in-16-bits"),
    )
