"""What failing rows have in common and passing rows have not: a condition on dtype, options and sizes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import compress

import numpy as np

from conformance.diagnosis.bits import bits_to_say
from conformance.diagnosis.facts import SIZES, TILES, conditions, more, rounded, sizes
from conformance.diagnosis.failing import Asked
from conformance.diagnosis.where import Where
from conformance.judging.verdict import Row
from conformance.vectors.case import Array, Case

SAVED = 12.0
"""Bits that a condition has to spare, of one dtype of its cases: fewer may be chance."""
MORE = 6.0
"""Bits that a second condition has to spare beyond its own name."""
WIDE, WIDEST = 0.75, 0.85
"""Shares of the rows above which the first condition says little, where something fails elsewhere, and where nothing
does: nearly everything fails."""
MOSTLY = 6.0
"""Bits that a condition costs if something fails elsewhere: what one mistake needs holds for all that fails."""
RARE = 3.0
"""Bits that the name of a condition on what an option holds takes beyond the others."""
SHARP = 0.8
"""The share of the rows under a condition that fail, from which on a second one may leave out none of them."""
PURE, LARGE = 0.95, 0.66
"""Shares, of the rows under a condition those that fail, or of what fails what is under it, if more fails elsewhere."""
SOME = 0.2
"""The share of the rows under a condition that fail, below which it says next to nothing."""
HALF = 0.5
"""The share of the rows under a condition that fail, and of what fails that is under one, below which it misleads."""
PAIRED = 40
"""Conditions that are tried with every other."""
MOST = 3
"""Conditions that are said of failures of one kind."""


@dataclass(frozen=True)
class Gap:
    """What the limit of a size may be by the rows, which have none of the sizes between."""

    size: str  # "q_len"
    said: str  # the condition with one of these limits, in words
    low: int  # the largest size that passes, where the rest of the condition holds
    high: int  # one below the least that fails


@dataclass(frozen=True)
class Split:
    """A condition that tells failing rows from passing ones; those of earlier splits of its kind are left out."""

    kind: str  # the verdict of the failing rows
    condition: str  # "at float16 and with more than 128 keys"
    failing: int  # rows that it holds for and that fail
    passing: int  # rows that it holds for and that pass
    failing_elsewhere: int
    passing_elsewhere: int
    rows: frozenset[tuple[str, str]]  # case and dtype of those that it holds for
    gaps: tuple[Gap, ...] = ()


def splits(rows: Iterable[Row], cases: Iterable[Case], places: Iterable[Where] = ()) -> tuple[Split, ...]:
    """Conditions for the failing rows of each kind, beside all rows that pass; calls to be refused are left out.

    That a call has one of some places is a condition as well.

    It is a decision list by description length: a condition is worth the bits that it spares whoever
    has to say which rows fail.
    """
    known = {case.id: case for case in cases if not case.raises}
    seen = [row for row in rows if row.executed and row.case in known]
    kinds = dict.fromkeys(row.judged for row in seen if row.failed)
    asked = {row.case: known[row.case] for row in seen}
    there = within(places, asked)
    found: list[Split] = []
    for kind in kinds:
        those = [row for row in seen if not row.failed or row.judged == kind]
        found += _of_kind(kind, those, [Asked(known[row.case], row.dtype) for row in those], there)
    return tuple(found)


def within(places: Iterable[Where], cases: Mapping[str, Case]) -> dict[str, set[str]]:
    """The calls that have each place, by its words, which places along two axes may share."""
    found: dict[str, set[str]] = {}
    for each in places:
        found.setdefault(each.words, set()).update(name for name, case in cases.items() if each.within(case))
    return found


def _of_kind(
    kind: str, rows: Sequence[Row], asked: Sequence[Asked], within: Mapping[str, Set[str]]
) -> list[Split]:
    failing = np.array([row.failed for row in rows])
    each = len(rows) / len({row.case for row in rows})  # dtypes of a case, which tend to fail alike
    left, found = np.ones(len(rows), dtype=bool), list[Split]()
    while len(found) < MOST and (left & failing).any() and not failing[left].all():
        here = np.flatnonzero(left).tolist()
        best = _best([asked[n] for n in here], failing[here], each, within)
        if best is None:
            break
        words, holds, gaps = best
        inside, outside = np.array(here)[holds], np.array(here)[~holds]
        if not found and holds.mean() > (WIDE if failing[outside].any() else WIDEST):
            break
        if failing[outside].any() and failing[inside].mean() < HALF:  # neither only there nor mostly there
            break
        if failing[inside].mean() < SOME:
            break
        if len({rows[n].case for n in inside if failing[n]}) < 2:  # one case is said by its name
            break
        found.append(
            Split(
                kind,
                words,
                int(failing[inside].sum()),
                int((~failing[inside]).sum()),
                int(failing[outside].sum()),
                int((~failing[outside]).sum()),
                frozenset(rows[n].key for n in inside),
                gaps,
            )
        )
        left[inside] = False
    covered = sum(split.failing for split in found)
    if found and found[-1].failing_elsewhere and covered < HALF * failing.sum():
        return []  # most of what fails lies elsewhere: it may be chance, or the calls before
    return found


def _best(
    asked: Sequence[Asked], failing: Array, each: float, within: Mapping[str, Set[str]]
) -> tuple[str, Array, tuple[Gap, ...]] | None:
    """The condition, or up to three that hold at once, which spares most bits; None where that may be chance."""
    found = list(conditions(asked, failing))
    found += [(words, np.array([a.case.id in those for a in asked]), True) for words, those in within.items()]
    if not found:
        return None  # nothing tells the rows apart
    words, columns, rare = zip(*found, strict=True)
    holds = np.array(columns)  # (conditions, rows)
    named = np.log2(len(words)) + RARE * np.array(rare)  # bits
    spared = _spared(holds, failing, each) - named
    order = np.argsort(-spared, kind="stable")
    first = int(order[0])
    best = Joint(float(spared[first]), (first,), holds[first])
    for one in order[:1] if best.sharp(failing) else order[:PAIRED]:
        best = max(best, _and(holds, failing, (int(one),), named, each), key=Joint.worth)
    if len(best.which) > 1:
        best = max(best, _and(holds, failing, best.which, named, each), key=Joint.worth)
    if best.bits < SAVED:
        return None
    which = sorted(best.which)
    gaps = _gaps([words[n] for n in which], holds[which], asked, failing)
    return " and ".join(words[n] for n in which), best.holds, tuple(gaps)


def _gaps(words: Sequence[str], holds: Array, asked: Sequence[Asked], failing: Array) -> Iterator[Gap]:
    """Of each condition that a size is above a number, the sizes between which its limit may lie."""
    of = [sizes(each.case) for each in asked]
    for number, told in enumerate(words):
        rest = np.delete(holds, number, axis=0).all(axis=0) & ~failing & ~holds[number]
        for name in SIZES:
            least = min(size[name] for size in compress(of, holds[number]))
            below = max((size[name] for size in of if size[name] < least), default=-1)
            if told in {more(name, limit) for limit in (below, rounded(below), *TILES)}:
                yield Gap(name, told, max((size[name] for size in compress(of, rest)), default=0), least - 1)


@dataclass(frozen=True)
class Joint:
    """Conditions that hold at once."""

    bits: float  # that they spare, beyond their names
    which: tuple[int, ...]
    holds: Array  # (rows,) bool

    def worth(self) -> tuple[float, int]:
        """What decides between two: bits, then which is the more usual, which stands first."""
        return round(self.bits, 6), -max(self.which)

    def sharp(self, failing: Array) -> bool:
        """Whether most of what they hold for fails."""
        return bool(failing[self.holds].mean() >= SHARP)


def _and(holds: Array, failing: Array, some: tuple[int, ...], named: Array, each: float) -> Joint:
    """Some conditions and the best one more."""
    one = np.asarray(holds[list(some)].all(axis=0))
    both = holds & one
    bits = _spared(both, failing, each) - named - named[list(some)].sum() - MORE * len(some)
    if (
        len(some) > 1 or failing[one].mean() >= SHARP
    ):  # only one that leaves out all that passes, and nothing else
        bits[(both != (one & failing)).any(axis=-1)] = -np.inf
    other = int(np.argmax(bits))
    return Joint(float(bits[other]), (*some, other), both[other])


def _spared(holds: Array, failing: Array, each: float) -> Array:
    """Bits by which the failing rows are said more shortly, of conditions (n, rows) under which more fail than else."""
    inside, bad = holds.sum(-1), (holds & failing).sum(-1)
    rest, bad_rest = len(failing) - inside, failing.sum() - bad
    spared = bits_to_say(failing.sum(), len(failing)) - bits_to_say(bad, inside) - bits_to_say(bad_rest, rest)
    spared = spared / each - MOSTLY * (bad_rest > 0)
    # where most of what it holds for passes, or much fails elsewhere, it is chance that it holds
    spared[(bad_rest > 0) & (bad < PURE * inside) & (bad < LARGE * (bad + bad_rest))] = -np.inf
    return np.where(bad * rest > bad_rest * inside, spared, -np.inf)
