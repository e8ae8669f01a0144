"""What a model says of the rows of a run, asked once, and what that amounts to."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from conformance.diagnosis.agree import Word, Wrong, predicts_failure
from conformance.diagnosis.failing import A, Asked, Evidence, Failure
from conformance.diagnosis.model import Model

SAMPLE = 32
"""Failing rows that a candidate is weighed by."""
PASSES = 16
"""Passing rows, likely to contradict it, that a candidate is weighed by."""
LIKELY = 60
"""Models that may reproduce a part of what is wrong, and are asked about all of it."""
LARGE = 50_000
"""Elements of inputs above which a row is left to the last count."""

WORTH: dict[Word, float] = {
    "same": 1.0,
    "faint": 0.25,
    "alike": 0.75,
    "partly": -0.25,
    "right": 0.0,
    "other": -0.5,
}
CONTRADICTION = 1.0
EXPLAINED: tuple[Word, ...] = ("same", "faint", "alike")
"""Words of a model that reproduces a row."""


@dataclass(frozen=True)
class Weight:
    """How a candidate fares on a sample."""

    model: Model
    words: tuple[Word, ...]  # of each failing row of the sample
    contradicted: int
    looked_at: int

    @property
    def score(self) -> float:
        """What it explains, less what speaks against it."""
        return sum(WORTH[word] for word in self.words) - CONTRADICTION * self.contradicted

    @property
    def explains(self) -> int:
        """How many rows of the sample it reproduces."""
        return sum(word in EXPLAINED for word in self.words)

    @property
    def by_numbers(self) -> bool:
        """Whether some row is reproduced by its numbers."""
        return "same" in self.words


class Bench:
    """Asks models about the rows of a run, and remembers what they said."""

    def __init__(self, evidence: Evidence, policy: str) -> None:
        self.evidence, self.policy = evidence, policy
        self._wrong: dict[int, Wrong] = {}
        self._quick: dict[tuple[str, int], Word] = {}
        self._words: dict[tuple[str, int], Word] = {}
        self._fails: dict[tuple[str, str, str], bool] = {}

    def _ready(self, failure: Failure) -> Wrong:
        if id(failure) not in self._wrong:
            self._wrong[id(failure)] = Wrong(failure, self.policy)
        return self._wrong[id(failure)]

    def clear(self, failure: Failure) -> bool:
        """Whether a row is wrong by so much that few mistakes give its numbers."""
        return self._ready(failure).clear

    def word(self, model: Model, failure: Failure) -> Word:
        """What a model says of a failing row."""
        key = (model.name, id(failure))
        if key not in self._words:
            self._words[key] = self._quick[key] = self._ready(failure).word(model)
        return self._words[key]

    def _glance(self, model: Model, failure: Failure) -> Word:
        """The same, with "right" for all that is neither the same nor alike, in whole or in part."""
        key = (model.name, id(failure))
        if key not in self._quick:
            self._quick[key] = self._ready(failure).word(model, "right")
        return self._quick[key]

    def explains(self, model: Model, failure: Failure, partly: bool = False) -> bool:
        """Whether a model reproduces a failing row, or what is wrong in it."""
        word = self._glance(model, failure)
        return word in EXPLAINED or (partly and word == "partly")

    def partial(self, among: Container[str]) -> set[str]:
        """The names of models that reproduce what is wrong in some row, and not the whole row; the likeliest."""
        rows = Counter(name for (name, _), word in self._quick.items() if word == "partly" and name in among)
        return {name for name, _ in rows.most_common(LIKELY)}

    def fails(self, model: Model, asked: Asked) -> bool:
        """Whether a model would fail a passing row."""
        key = (model.name, asked.case.id, asked.dtype)
        if key not in self._fails:
            self._fails[key] = predicts_failure(model, asked, self.policy)
        return self._fails[key]

    def weigh(self, model: Model, sample: Sequence[Failure]) -> Weight:
        """A candidate on a sample of failing rows, and on passing rows that it is likely to fail."""
        passes = telling(model, self.evidence.passes)
        return Weight(
            model,
            tuple(self.word(model, failure) for failure in sample),
            sum(self.fails(model, asked) for asked in passes),
            len(passes),
        )


def telling(model: Model, passes: Iterable[Asked]) -> list[Asked]:
    """Passing rows that speak against a model if it would fail them: those of its own requirements first."""
    usable = [asked for asked in passes if asked.size <= LARGE and model.may_show(asked.case)]
    own = [asked for asked in usable if set(model.violates) & set(asked.case.covers)]
    half = spread(own, PASSES // 2)
    rest = [asked for asked in usable if asked not in half]
    return [*half, *spread(rest, PASSES - len(half))]


def spread(asked: Sequence[A], most: int) -> list[A]:
    """Rows that have little in common, by greed; given an order, the first of equals."""
    chosen: list[A] = []
    left = {number: _tokens(each) for number, each in enumerate(asked)}
    seen: set[str] = set()
    while left and len(chosen) < most:
        best = max(left, key=lambda number: (min(len(left[number] - seen), 3), -number))
        seen |= left.pop(best)
        chosen.append(asked[best])
    return chosen


def _tokens(asked: Asked) -> set[str]:
    case = asked.case
    return {case.operation, case.chapter, *case.covers, *case.features, *case.expected}
