"""What a size must be for a call to fail: guesses in words, and the sizes that tell them apart.

A guess that contradicts an answer is dropped. Sizes are asked until those that are left say the same of every size.
A guess that rests on too few sizes is not told: chance makes odd sizes fail and even ones pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

TILES = (512, 256, 192, 128, 80, 64, 32, 16, 8, 4, 2)
FIRST = (2, 3, 16, 17, 64)
NEXT = (4, 5, 8, 9, 32, 33, 65, 128)
FAR = (33, 65, 129, 257, 513, 1025)
"""Sizes above one at which programs begin to go wrong, or cease to."""
SUPPORT = 2
SUPPORT_OF_FEW = 4
"""Sizes that must fail, and that must pass, before a condition with a tile is told; of the smallest tiles more."""


@dataclass(frozen=True)
class Guess:
    """A condition on a size."""

    words: str  # behind the name of the size
    holds: Callable[[int], bool]
    support: int = 1


def _rest(m: int, tile: int, rest: int, wanted: bool, n: int) -> bool:
    return n >= m and (n % tile == rest) == wanted


def guesses(m: int) -> Iterator[Guess]:
    """Conditions that hold of the smallest size that fails, the plainest first."""
    yield Guess("" if m <= 1 else f"{m} or more", lambda n: n >= m)
    yield Guess(f"{m}", lambda n: n == m)
    whole = [t for t in dict.fromkeys((m, *TILES)) if 1 < t <= m and m % t == 0]
    for t in whole:
        words = f"a multiple of {t}" if t > 2 else "even"
        yield Guess(words + ("" if m == t else f", from {m} on"), partial(_rest, m, t, 0, True), _support(t))
    for t in TILES:
        if m % t and t > 2 and m != 2:
            yield Guess(
                f"no multiple of {t}" + (f", from {m} on" if m > 1 else ""),
                partial(_rest, m, t, 0, False),
                _support(t),
            )
    for t in TILES:
        if m % t and m != 2:
            words = f"with a rest of {m % t} in {t}" if t > 2 else "odd"
            yield Guess(
                words + (f", from {m} on" if m > t else ""), partial(_rest, m, t, m % t, True), _support(t)
            )


def _support(tile: int) -> int:
    return SUPPORT if tile > 4 else SUPPORT_OF_FEW


def sizes(m: int) -> list[int]:
    """Sizes above the smallest one at which its guesses differ, the plainest first."""
    if m <= 1:
        return [*FIRST, *NEXT]
    found = [m + 1, 2 * m, 2 * m + 1, 3 * m, m + 2]
    for tile in (64, 128, 16, 32, 256, 8, 192, 80, 512, 4, 2):
        up = (m // tile + 1) * tile  # the next multiple, the one behind it, and the same rest
        found += [up, m + tile, up + tile, up + 1]
    return [n for n in dict.fromkeys(found) if n > m]


class Question:
    """What is known of one size of one call."""

    def __init__(self, m: int, fails: Callable[[int], bool | None], asks: int, most: int) -> None:
        self.m, self.asked, self._fails, self._asks, self._most = m, {m: True}, fails, asks, most
        self._refused: set[int] = set()
        self.left = list(guesses(m))

    def ask(self, n: int) -> bool:
        """Asks one size; false where it cannot be asked."""
        if n in self.asked or n in self._refused or n > self._most or self._asks <= 0:
            return False
        answer = self._fails(n)
        if answer is None:
            self._refused.add(n)
            return False
        self._asks -= 1
        self.asked[n] = answer
        self.left = [guess for guess in self.left if guess.holds(n) == answer]
        return True

    def found(self) -> str | None:
        """What is said: empty where the size does not matter, None where nothing could be found out."""
        m, points = self.m, sizes(self.m)
        for n in points[:4] if m > 1 else FIRST:
            self.ask(n)
        while len(self.left) > 1 and (telling := self._splits(points)):
            self.ask(telling)
        if self.left and self.left[0].words in ("", f"{m} or more"):  # an upper end shows far away
            for n in reversed(FAR) if m <= 1 else (16 * m, 8 * m, 4 * m + 1):
                if self.ask(n):
                    break
        if len(self.asked) == 1:
            return None
        while self.left and not self._supported(self.left[0]):
            need = [n for n in points if n <= self._most and n not in self.asked and n not in self._refused]
            scarce = sum(self.asked.values()) < self.left[0].support
            more = next((n for n in need if self.left and self.left[0].holds(n) == scarce), None)
            if more is None or (not self.ask(more) and more not in self._refused):
                break
        return next((guess.words for guess in self.left if self._supported(guess)), None) or (
            "" if self.left and self.left[0].words == "" else self._ranges()
        )

    def _splits(self, points: Sequence[int]) -> int | None:
        """The size that tells most guesses apart."""
        best: int | None = None
        most = 0
        for n in points:
            if n in self.asked or n in self._refused or n > self._most or self._asks <= 0:
                continue
            holding = sum(guess.holds(n) for guess in self.left)
            if min(holding, len(self.left) - holding) > most:
                best, most = n, min(holding, len(self.left) - holding)
        return best

    def _supported(self, guess: Guess) -> bool:
        failing = sum(self.asked.values())
        return guess.support <= 1 or min(failing, len(self.asked) - failing) >= guess.support

    def _ranges(self) -> str | None:
        """No guess is left: an upper end by bisection; nothing where sizes fail and pass by turns, as chance has it."""
        m = self.m
        failing = sorted(n for n, failed in self.asked.items() if failed)
        passing = sorted(n for n, failed in self.asked.items() if not failed)
        if not passing:
            return f"{m} or more" if m > 1 else ""
        if failing[-1] < passing[0]:
            low, high = failing[-1], passing[0]
            while high - low > 1 and (answer := self._fails((low + high) // 2)) is not None:
                low, high = ((low + high) // 2, high) if answer else (low, (low + high) // 2)
            return f"at most {low}" if m <= 1 else f"{m}" if low == m else f"from {m} to {low}"
        return None


def condition(m: int, fails: Callable[[int], bool | None], asks: int, most: int) -> str | None:
    """What is said of a size, of which `m` fails: empty where it does not matter, None where nothing was found out.

    `fails` says None of a size that cannot be asked.
    """
    return Question(m, fails, asks, most).found()
