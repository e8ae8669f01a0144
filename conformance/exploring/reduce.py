"""From a call that fails to the smallest one that still does: in some 100 calls, always the same way."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from conformance.exploring import broken, parts, plain, smaller, worst
from conformance.exploring.numbers import RAMP, SCRAMBLED, ZEROS
from conformance.exploring.recipe import EXPLICIT, Recipe
from conformance.exploring.trial import Tried
from conformance.exploring.valid import valid
from conformance.names import PACKED, PAGED

CALLS = 110
ROUNDS = 3
MASKS = ("f", "t", "h")
BIASES = (ZEROS, "O", RAMP, "i", "n0")
"""Kinds of masks and biases, the plainest first."""


class Asks(Protocol):
    """Whoever asks a recipe."""

    def __call__(self, recipe: Recipe) -> Tried:
        """What became of it."""


class Reduction:
    """One reduction under way. `allowed` says whether the target claims what a recipe needs."""

    def __init__(
        self, ask: Asks, first: Tried, allowed: Callable[[Recipe], bool], calls: int = CALLS,
        dtypes: tuple[str, ...] = (),
        kept: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._ask, self._allowed, self._left = ask, allowed, calls
        self.best, self._kind = first, first.kind
        self.known: dict[Recipe, Tried] = {first.recipe: first}
        self._dtypes, self._kept = dtypes, kept

    def fails(self, recipe: Recipe) -> bool:
        """Whether a recipe fails in the same way; every one is asked once, while calls are left."""
        if recipe not in self.known:
            if self._left <= 0 or not valid(recipe) or not self._allowed(recipe):
                return False
            self._left -= 1
            self.known[recipe] = self._ask(recipe)
        tried = self.known[recipe]
        return tried.failed and tried.kind == self._kind

    @property
    def left(self) -> int:
        """Calls that may still be asked."""
        return self._left

    @property
    def apart(self) -> bool:
        """Whether d_k and d_v may differ."""
        return self._allowed(replace(self.now, d_k=1, d_v=2))

    def more(self, calls: int) -> None:
        """Allows so many calls from now on."""
        self._left = calls

    def take(self, recipe: Recipe) -> bool:
        """Goes on with a recipe if it fails."""
        if recipe == self.best.recipe or not self.fails(recipe):
            return False
        self.best = self.known[recipe]
        return True

    def first(self, recipes: Iterable[Recipe]) -> bool:
        """Goes on with the first of some recipes that fails."""
        return any(self.take(recipe) for recipe in recipes)

    @property
    def now(self) -> Recipe:
        """The smallest so far."""
        return self.best.recipe

    def run(self) -> Tried:
        """The smallest call that was found to fail."""
        for number in range(ROUNDS):
            before = self.now
            self._options()
            self._entries()
            self._heads()
            if number == 0:
                self._plain_at_once()
            self._sizes()
            self._widths()
            self._options()
            self._numbers()
            self._values()
            self._other_numbers()
            if self.now == before:
                break
        return self.best

    def _options(self) -> None:
        for option in smaller.given(self.now):
            if option in smaller.given(self.now) and option not in self._kept:
                self.take(smaller.without(self.now, option))

    def _entries(self) -> None:
        r = self.now
        if r.entries < 1:
            return
        if r.batch not in ((), (1,)):
            tried = list(dict.fromkeys((worst.entry(self.best), 0, r.entries - 1)))
            if self.first(smaller.of_entry(r, e, keep_axis=False) for e in tried):
                return
            if r.entries > 2 and self.first(
                smaller.of_entries(r, pair)
                for e in tried
                for pair in ((0, e), (e, 0), (e - 1, e))
                if min(pair) >= 0 and pair[0] != pair[1]
            ):
                return
            if len(r.batch) > 1:
                self.take(smaller.of_batch(r, r.entries))
            self._down(self.now.entries, smaller.of_batch, least=2)
        elif r.batch == (1,) and r.lengths is None and r.operation not in (PACKED, PAGED):
            self.take(smaller.of_entry(r, 0, keep_axis=False))

    def _heads(self) -> None:
        r = self.now
        if (r.heads, r.groups) == (1, 1):
            return
        if self.first(
            replace(r, heads=h, groups=g) for h, g in ((1, 1), (2, 1), (2, 2), (4, 2)) if h < r.heads
        ):
            return
        if r.heads != r.groups:
            each = r.heads // r.groups
            if r.groups > 1 and not self.take(replace(r, heads=each, groups=1)) and r.groups > 2:
                self.take(replace(r, heads=2 * each, groups=2))
            g = self.now.groups
            self._down(self.now.heads // g, lambda r, n: replace(r, heads=n * g))
        else:
            self._down(r.heads, lambda r, n: replace(r, heads=n, groups=n))

    def _plain_at_once(self) -> None:
        r = self.now
        families = [RAMP, SCRAMBLED]
        for value in families:
            made = r.made_of("query", ZEROS).made_of("key", ZEROS).made_of("value", value)
            if self.take(smaller.mended(made) if r.served else made):
                return
        for family in (SCRAMBLED, "i"):
            made = r.made_of("query", family).made_of("key", family).made_of("value", family)
            if self.take(smaller.mended(made) if r.served else made):
                return

    def _sizes(self) -> None:
        r = self.now
        if r.q_len > 1:
            self.first(
                smaller.row_alone(r, n) for n in dict.fromkeys((worst.query(self.best), r.q_len - 1, 0))
            )
        self.take(smaller.of_near_lengths(self.now))
        if self.now.kv_len > 1:
            self._down(self.now.kv_len, smaller.of_keys)
        r = self.now
        if r.kv_len > 1 and isinstance(r.offset, (int, tuple)) and not r.served:
            self._down(r.kv_len, smaller.of_last_keys)
        r = self.now
        if isinstance(r.lengths, tuple) and r.entries > 1 and len(set(r.lengths)) == 1 and not r.served:
            self._down(r.lengths[0], smaller.of_one_length)
        r = self.now
        if r.q_len > 1:
            if self.first(
                smaller.row_alone(r, n) for n in dict.fromkeys((worst.query(self.best), r.q_len - 1, 0))
            ):
                self._down(self.now.kv_len, smaller.of_keys)
            else:
                self._down(r.q_len, lambda r, n: smaller.of_queries(r, n, from_end=False))
                self._down(self.now.q_len, lambda r, n: smaller.of_queries(r, n, from_end=True), few=True)
        if self.now.past > 1:
            self._down(self.now.past, lambda r, n: replace(r, past=n))
        if self.now.page > 1:
            self._down(self.now.page, lambda r, n: replace(r, page=n))
        if self.now.written > 1:
            self._down(self.now.written, lambda r, n: replace(r, written=n))

    def _other_numbers(self) -> None:
        """The smallest sizes once more, with other numbers: with those of before they may have passed by chance."""
        width = partial(smaller.of_width, name="d_k") if self.apart else smaller.of_width
        makers: dict[str, Callable[[Recipe, int], Recipe]] = {
            "q_len": partial(smaller.of_queries, from_end=True), "kv_len": smaller.of_keys, "d_k": width
        }  # fmt: skip
        for name, make in makers.items():
            for n in (1, 2):
                if not plain.by_chance(self.now) or n >= getattr(self.now, name):
                    break
                if self.first(plain.other_numbers(make(self.now, n))):
                    break

    def _widths(self) -> None:
        r = self.now
        if r.layer and r.widths != (1, 1, 1, 1) and not self.take(replace(r, widths=(1, 1, 1, 1))):
            for n in range(4):
                widths = list(self.now.widths)
                widths[n] = 1
                self.take(replace(self.now, widths=tuple(widths)))
        if r.d_k == r.d_v and r.d_k > 1:
            self._down(r.d_k, lambda r, n: smaller.of_width(r, n))
        for name in ("d_v", "d_k"):
            if (self.apart or self.now.d_k != self.now.d_v) and getattr(self.now, name) > 1:
                self._down(getattr(self.now, name), partial(smaller.of_width, name=name))
        if self.now.d_k != self.now.d_v:
            self.take(smaller.of_width(self.now, min(self.now.d_k, self.now.d_v)))

    def _numbers(self) -> None:
        for operand in plain.operands(self.now):
            self.first(plain.plainer(self.now, operand))

    def _values(self) -> None:
        """Lengths, offsets, windows, masks and scalars to plain ones."""
        r = self.now
        if isinstance(r.lengths, tuple) and r.entries <= EXPLICIT:
            for place in range(len(r.lengths)):
                self._down(r.lengths[place], partial(smaller.of_length, place), least=0, few=r.entries > 2)
        if self.now.operation in (PACKED, PAGED):
            self._counts()
        r = self.now
        if isinstance(r.offset, tuple) and len(set(r.offset)) == 1:
            self.take(replace(r, offset=r.offset[0]))
        if isinstance(r.offset, int) and r.offset:
            self.first(replace(r, offset=n) for n in (0, r.kv_len - r.q_len) if n != r.offset)
        r = self.now
        if r.window is not None:
            left, right = r.window
            if left is not None and right is not None:
                self.first(replace(r, window=w) for w in ((None, right), (left, None)))
            left, right = self.now.window or (None, None)
            if left is not None and left > 0:
                self._down(left, lambda r, n: smaller.of_window(r, left=n), least=0)
            if right is not None and right > 0:
                self._down(right, lambda r, n: smaller.of_window(r, right=n), least=0)
        for name, order in (("mask", MASKS), ("bias", BIASES)):
            axes, _, kind = getattr(self.now, name).partition("-")
            if kind:
                plainer = order[: order.index(kind)] if kind in order else order
                self.first([smaller.of_kind(self.now, name, f"{axes}-{k}") for k in plainer])
        for operand, kind in self.now.broken:
            plainer = tuple(broken.SAID)[: tuple(broken.SAID).index(kind)]
            self.first([replace(self.now, broken=((operand, k),)) for k in plainer])
        if self.now.scale not in (None, 1.0):
            self.take(replace(self.now, scale=1.0))
        if self.now.softcap not in (None, 2.0):
            self.take(replace(self.now, softcap=2.0))
        if self.now.dtype != "float32" and "float32" in self._dtypes:
            self.take(replace(self.now, dtype="float32"))

    def _counts(self) -> None:
        """The queries of each part down, and where they stand; a table no longer than what it holds."""
        r = self.now
        if isinstance(r.offset, tuple) and r.offset and not parts.tied(r):
            least = min(r.offset)
            self.take(replace(r, offset=tuple(n - least for n in r.offset)))
            for place in range(len(r.offset)):
                if isinstance(self.now.offset, tuple) and self.now.offset[place] > 0:
                    self._down(self.now.offset[place], partial(smaller.standing, place), least=0, few=True)
        r = self.now
        if isinstance(r.lengths, tuple) and max(r.lengths, default=0) < r.kv_len:
            self.take(smaller.of_keys(r, max(r.lengths, default=0)))
        r = self.now
        if isinstance(r.queries, tuple) and r.entries <= EXPLICIT:
            for place in range(len(r.queries)):
                if isinstance(self.now.queries, tuple):
                    self._down(self.now.queries[place], partial(smaller.of_rows, place), least=0, few=True)

    def _down(
        self, size: int, make: Callable[[Recipe, int], Recipe], least: int = 1, few: bool = False
    ) -> None:
        """A size down: the smallest that fails of some, then halves towards the largest that does not."""
        base = self.now
        order = smaller.candidates(size, least)
        order = order[:4] if few else order
        passing = least - 1
        found = size
        for n in order:
            if self.take(make(base, n)):
                found = n
                break
            passing = n
        while found - passing > 1:
            middle = (found + passing) // 2
            if self.take(make(base, middle)):
                found = middle
            else:
                passing = middle
