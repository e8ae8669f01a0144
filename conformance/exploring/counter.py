"""Numbers without state: word number i of a stream is a function of the stream's key and of i alone.

Seeded operands of the vectors are made of the same words (conformance/vectors/words.py).
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from conformance.vectors.words import MASK, Words, mix, mixed

T = TypeVar("T")


def key(*parts: int | str) -> int:
    """The key of a stream that has these parts in its name."""
    word = 0
    for part in parts:
        codes = [part] if isinstance(part, int) else [256, *part.encode()]
        for code in codes:
            word = mix(word ^ mix(code & MASK))
    return word


def grid(start: int, shape: Sequence[int]) -> Words:
    """A word for each place of an array, by its coordinates: a smaller array has the words of its places."""
    words = np.full((), start, np.uint64)
    for size in shape:
        places = np.arange(size, dtype=np.uint64)
        words = mixed(words[..., None] ^ mixed(places))
    return words


class Dice:
    """Small whole numbers, one after another, from a stream."""

    def __init__(self, *parts: int | str) -> None:
        self._key, self._count = key(*parts), 0

    def word(self) -> int:
        """The next 64 bits."""
        self._count += 1
        return mix(self._key ^ mix(self._count))

    def below(self, number: int) -> int:
        """A number from 0 to `number` - 1."""
        return self.word() % number

    def between(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both among them; `low` where there is none."""
        return low + self.below(max(high - low, 0) + 1)

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred."""
        return self.below(100) < percent

    def choice(self, things: Sequence[T]) -> T:
        """One of some things."""
        return things[self.below(len(things))]

    def order(self, things: Sequence[T]) -> list[T]:
        """The things in another order."""
        left = list(things)
        return [left.pop(self.below(len(left))) for _ in things]

    def rough(self, most: int) -> int:
        """A number from 1 to `most`, each power of two as likely as the next."""
        bits = self.below(max(most, 1).bit_length())
        return min(2**bits + self.below(2**bits), max(most, 1))
