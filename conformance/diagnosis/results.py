"""Which of several results are wrong, and where in them, where that holds of every failing row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from conformance.diagnosis.agree import Wrong
from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.where import Where, where
from conformance.vectors.case import Case

MOST = 100
"""Failing rows that are looked at, of every size."""
PASSING = 200
"""Cases that pass, of which it is asked whether they have such a place."""
ENOUGH = 2
"""Cases that have a result which is right."""
NAMED = 4
"""Results that are named; more are the others."""


@dataclass(frozen=True)
class Results:
    """What is wrong in every failing row of forward calls, or of gradients, that was looked at."""

    gradients: bool
    rows: int
    wrong: tuple[str, ...]  # results that are wrong in some of them
    right: tuple[
        str, ...
    ]  # those that are right in all of them and in several cases; empty where that says little
    alone: bool  # whether all that is wrong is of this kind
    places: tuple[Where, ...]  # where in some of the wrong ones

    @property
    def sentences(self) -> tuple[str, ...]:
        """`Only the gradient of key is wrong: ...`, `The gradient of key is wrong only at the last key, ...`."""
        return (*self.which, *(self._sentence(place) for place in self.places))

    @property
    def which(self) -> tuple[str, ...]:
        """Which results are wrong, in a sentence, if some never are."""
        if not self.right:
            return ()
        are = "are" if len(self.wrong) > 1 else "is"
        rest = f"{_joined(self.right)} {'are' if len(self.right) > 1 else 'is'}"
        rest = rest if len(self.right) <= NAMED else "the others are"
        return (f"Only {self._named(self.wrong)} {are} wrong: {rest} right {self._looked}.",)

    def untold(self, lines: Sequence[str]) -> tuple[str, ...]:
        """The sentences without places that some lines tell of."""
        told = "".join(lines)
        return (*self.which, *(self._sentence(place) for place in self.places if place.words not in told))

    def _sentence(self, place: Where) -> str:
        name, are = self._named(place.names), "are" if len(place.names) > 1 else "is"
        return f"{name[0].upper()}{name[1:]} {are} wrong only {place.words}, {self._looked}."

    @property
    def _looked(self) -> str:
        rows = "in the failing row" if self.rows == 1 else f"in all {self.rows} failing rows"
        return f"{rows} looked at"

    def there(self, condition: str) -> str:
        """The same as a part of a sentence on rows of a condition: `only in the gradient of key, at the last key`."""
        some = [f"in {self._named(self.wrong)}"] if self.right else []
        places = [each for each in self.places if each.words not in condition]
        whole = [each.words for each in places if each.names == self.wrong]
        part = [
            f"of {_joined(each.names)} {each.words}" for each in places if each.names != self.wrong and some
        ]
        told = ", ".join([*some, *whole, *part])
        return f"only {told}" if told else ""

    def _named(self, names: Sequence[str]) -> str:
        if not self.gradients:
            return _joined(names)
        return f"the {'gradients' if len(names) > 1 else 'gradient'} of {_joined(names)}"


def by_results(failures: Sequence[Failure], passes: Sequence[Asked], policy: str) -> tuple[Results, ...]:
    """What is wrong in forward calls, and in gradients, where something can be said of it."""
    said, numbers = [], [f for f in failures if f.outputs and not f.case.raises]
    for gradients in (False, True):
        rows = sorted((f for f in numbers if f.case.gradients == gradients), key=lambda f: f.size)
        some = [Wrong(row, policy) for row in rows[:: -(-len(rows) // MOST) or 1]]
        right = list({p.case.id: p.case for p in passes if p.case.gradients == gradients}.values())
        found = _of(some, gradients, len(rows) == len(numbers), right[:PASSING])
        if found.sentences:
            said.append(found)
    return tuple(said)


def _of(rows: Sequence[Wrong], gradients: bool, alone: bool, passes: Sequence[Case]) -> Results:
    wrong, cases = dict[str, int](), dict[str, set[str]]()
    for row in rows:
        for name, right in row.results.items():
            cases.setdefault(name, set()).add(row.failure.case.id)
            wrong[name] = wrong.get(name, 0) + (not right)
    bad = tuple(name for name in cases if wrong[name])
    good = tuple(name for name in cases if not wrong[name] and len(cases[name]) >= ENOUGH)
    # that the lse or a cache is right says little of the output, and b_o depends on nothing but the cotangent
    if "output" in bad or not bad or good == ("b_o",):
        good = ()
    return Results(gradients, len(rows), bad, good, alone, tuple(_places(rows, bad, passes)))


def _places(rows: Sequence[Wrong], names: tuple[str, ...], passes: Sequence[Case]) -> Iterator[Where]:
    """Where the results are wrong, those that are wrong in the same place at once."""
    if len(names) > 1 and (whole := where(rows, names, passes)):
        yield whole
        return
    each = [found for name in names if (found := where(rows, (name,), passes))]
    for words in dict.fromkeys(found.words for found in each):
        alike = [found for found in each if found.words == words]
        yield replace(alike[0], names=tuple(found.names[0] for found in alike))


def _joined(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
