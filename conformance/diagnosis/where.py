"""Where in a result the wrong numbers lie, which holds in every failing row that has that result."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import lgamma, log, log2

import numpy as np

from conformance.diagnosis.agree import Side, Wrong
from conformance.diagnosis.laid import Laid
from conformance.diagnosis.regions import Region, regions
from conformance.names import DENSE
from conformance.vectors.case import Array, Case

REGIONS = tuple(regions())
NEEDED = 10.0 + log2(len(REGIONS))
"""Bits that a place has to spare, its name among them: fewer may be chance."""
EACH = 10.0
"""Bits of one case that count there, so that no place is told of by a single one."""


NEAR = 2.0
"""Bits by which a place may say it less shortly than the best one."""


@dataclass(frozen=True)
class Wronged:
    """One result of a failing row: which elements are wrong, and which would show a mistake."""

    case: Case
    name: str
    laid: Laid
    wrong: Array  # bool, the shape that is held
    telling: Array  # bool: wrong, or neither zero nor what a single key gives, so that a mistake would show


@dataclass(frozen=True)
class Where:
    """A part of some results in which all their wrong numbers lie."""

    names: tuple[str, ...]
    words: str  # "behind the first 32 keys"
    region: Region

    def within(self, case: Case) -> bool:
        """Whether a call has such a part."""
        return case.operation in DENSE and any(
            _inside(Laid(case, name, golden.hi.shape, golden.rows), self.region)
            for name, golden in case.expected.items()
            if name in self.names
        )


def where(rows: Sequence[Wrong], names: tuple[str, ...], passes: Sequence[Case]) -> Where | None:
    """Where some results are wrong; None where that is anywhere, or too few rows tell.

    Of places that say it as shortly it is the one that the fewest of the calls that pass have.
    """
    seen = [each for row in rows for name in names for each in _wronged(row, name)]
    if not seen:
        return None
    spared = ((_spared(seen, region), words, region) for words, region in REGIONS)
    sure = [
        (sum(bits), Where(names, words, region))
        for bits, words, region in spared
        if sum(min(n, EACH) for n in bits) >= NEEDED
    ]
    most = max((bits for bits, _ in sure), default=0.0)
    near = [each for bits, each in sure if bits >= most - NEAR]
    if len(near) < 2:
        return next(iter(near), None)
    return min(near, key=lambda each: sum(map(each.within, passes)))


def _inside(laid: Laid, region: Region) -> bool:
    try:
        return bool(region(laid).any())
    except ValueError:
        return False


def _wronged(row: Wrong, name: str) -> Iterator[Wronged]:
    failure = row.failure
    side = row.sides.get(name)
    if side is None or side.golden is None or side.right.all() or failure.case.operation not in DENSE:
        return
    laid = Laid(failure.case, name, side.right.shape, side.golden.rows)
    if "-" * len(laid.axes) != laid.axes:
        yield Wronged(failure.case, name, laid, ~side.right, ~side.right | _shows(side, laid))


def _shows(side: Side, laid: Laid) -> Array:
    """Elements that are not exactly zero by themselves, in rows that see more than one key."""
    assert side.golden is not None
    with np.errstate(invalid="ignore"):
        shows = np.isfinite(side.golden.hi) & (np.abs(side.golden.hi) > np.nan_to_num(side.limit))
    if "q" in laid.axes and "B" in laid.axes:
        with suppress(ValueError):
            shows = shows & laid.along("q", laid.visible.sum(-1) != 1)
    return np.asarray(shows)


def _spared(seen: Sequence[Wronged], region: Region) -> list[float]:
    """Bits by which a place shortens the list of what is wrong, of each case; none where something lies elsewhere."""
    by_case: dict[tuple[str, str], float] = {}
    for each in seen:
        try:
            holds = region(each.laid)
        except ValueError:
            return []
        if (each.wrong & ~holds).any():
            return []
        by_case.setdefault((each.case.id, each.name), _bits(each, holds))
    cases = dict.fromkeys((case for case, _ in by_case), 0.0)
    for (case, _), bits in by_case.items():
        cases[case] = max(cases[case], bits)
    return list(cases.values())


def _bits(each: Wronged, holds: Array) -> float:
    """The same for one row; elements that a place cannot tell apart are one.

    What is right in the place counts even where it is zero; elsewhere only what would show a mistake.
    """
    axes = tuple(n for n, size in enumerate(_padded(holds.shape, each.wrong.ndim)) if size == 1)
    wrong, telling = each.wrong.any(axes, keepdims=True), each.telling.any(axes, keepdims=True)
    inside = np.broadcast_to(holds, telling.shape)
    of, some = int((telling | inside).sum()), int(wrong.sum())
    return _choices(of, some) - _choices(int(inside.sum()), some)


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _choices(of: int, some: int) -> float:
    """Bits that it takes to say which `some` of `of` they are."""
    return (lgamma(of + 1) - lgamma(some + 1) - lgamma(of - some + 1)) / log(2)
