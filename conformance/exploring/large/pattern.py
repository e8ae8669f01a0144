"""What the wrong rows of one call have in common, and the right ones have not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.vectors.case import Array

TILES = (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024, 2048, 4096, 65_536)
SIDES = {
    "before": "the key before the first in sight", "first": "the first key in sight",
    "last": "the last key in sight", "behind": "the key behind the last in sight",
}  # fmt: skip
"""Attributes that are one or zero, and what one says."""
WORDS = {"entry": "entry", "head": "head", "query": "query", "key": "key", "seen": "keys in sight"}


EVERY_ROW = "every row"
SEVERAL = 3
"""Keys that are wrong from which on the widest tile is told that they all stand in the same place of."""


@dataclass(frozen=True)
class Common:
    """A condition that every wrong row meets."""

    text: str
    wrong: int  # rows that meet it and are wrong
    right: int  # rows that meet it and are right, of those that were looked at

    @property
    def sentence(self) -> str:
        """`key 65,536 or more`."""
        if not self.right:
            return self.text
        return f"{self.text}, in {self.wrong} of {self.wrong + self.right} such cases"


def common(wrong: Mapping[str, Array], right: Mapping[str, Array]) -> Common | None:
    """The condition that tells wrong from right best; None where nothing does.

    Args:
        wrong: attribute -> its number for each wrong row.
        right: the same of right rows, some of them.
    """
    count = len(next(iter(wrong.values())))
    if not len(next(iter(right.values()))):
        return Common(EVERY_ROW, count, 0)
    first, name, kept = _best(wrong, right)
    if first is None or not first.right:
        return first
    others = {other: numbers for other, numbers in wrong.items() if other != name}
    second, _, _ = _best(others, kept)  # what else it takes, among the right rows that meet the first
    if second is not None and 2 * second.right < first.right:
        first = Common(f"{first.text}, {second.text}", count, second.right)
    return first if first.right <= count else None


def _best(
    wrong: Mapping[str, Array], right: Mapping[str, Array]
) -> tuple[Common | None, str, dict[str, Array]]:
    """The condition that fewest right rows meet, and those that do."""
    count = len(next(iter(wrong.values())))
    found = []
    for name in wrong:
        for text, meets in _conditions(name, wrong[name], right[name]):
            met = meets(right[name])
            found.append((int(met.sum()), text, name, met))
    if not found:
        return None, "", dict(right)
    number, text, name, met = min(found, key=lambda each: each[0])
    return Common(text, count, number), name, {name: numbers[met] for name, numbers in right.items()}


def _conditions(name: str, wrong: Array, right: Array) -> Iterator[tuple[str, "Test"]]:
    """Conditions on one attribute that all of the wrong rows meet, the plainest first."""
    if name in SIDES:
        if wrong.all():
            yield SIDES[name], Test(1, 1)
        return
    word = WORDS[name]
    low, high = int(wrong.min()), int(wrong.max())
    if low == high and low > 0:
        yield f"{word} {low:,}", Test(low, high)
    below, above = right[right < low], right[right > high]
    if low > 0:
        start = _round(int(below.max()) + 1 if len(below) else low, low)
        yield f"{word} {start:,} or more", Test(start, 2**62)
    several = len(np.unique(wrong))
    for tile in reversed(TILES) if several >= SEVERAL else TILES:
        rest = int(wrong[0] % tile)
        if rest in (0, 1, tile - 1) and (wrong % tile == rest).all() and several > 1:
            which = {0: "first", 1: "second", tile - 1: "last"}[rest]
            yield f"the {which} {word} of each {tile:,}", Test(rest, rest, tile)
    if high > low:
        for tile in TILES[3:]:
            if low // tile == high // tile and low // tile > 0:
                start = low // tile * tile
                yield f"{word} {start:,} to {start + tile - 1:,}", Test(start, start + tile - 1)
    if len(above):
        yield f"{word} {_round(high + 1, int(above.min())) - 1:,} or less", Test(-1, high)


@dataclass(frozen=True)
class Test:
    """Whether numbers lie from .. to, each taken by its rest."""

    low: int
    high: int
    tile: int = 0

    def __call__(self, numbers: Array) -> Array:
        """Which of the numbers do."""
        rest = numbers % self.tile if self.tile else numbers
        found: Array = (rest >= self.low) & (rest <= self.high)
        return found


def _round(low: int, high: int) -> int:
    """The roundest number from `low` to `high`."""
    for power in range(high.bit_length(), -1, -1):
        step = 1 << power
        if -(-low // step) * step <= high:
            return -(-low // step) * step
    return high
