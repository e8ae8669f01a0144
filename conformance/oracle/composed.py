"""An operation that is defined by reduction, certified by the calls of attention that it stands for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from conformance.names import PACKED
from conformance.vectors.case import Array, Case, Golden, query_axis
from conformance.vectors.generate.build import build_served
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.serving import Share, shares


class Asked(Protocol):
    """Whoever gives some elements of a result once more, by its second tier."""

    def at_once(self, most: int) -> int:
        """How many elements may be asked for together."""

    def __call__(self, name: str, golden: Golden, flat: Array) -> tuple[Array, Array]:
        """Hi and lo of the elements at flat places of a result."""


class Part(Protocol):
    """One certified call of attention."""

    @property
    def case(self) -> Case:
        """The call, with what is expected."""

    @property
    def own_error(self) -> Mapping[str, Array]:
        """A bound on the error of each result."""

    @property
    def second(self) -> Asked:
        """Who gives its elements once more."""

    @property
    def confirmed(self) -> Mapping[str, Array]:
        """The elements that the second tier has given."""


@dataclass
class Composed:
    """What the calls of one operation say of it; it is asked for elements as one call is."""

    draft: Draft
    case: Case
    parts: Sequence[tuple[Share, Part]]
    _owner: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    @property
    def own_error(self) -> dict[str, Array]:
        """Of each result; what is copied has none."""
        return {name: self._laid(name, _error, 0.0) for name in self.case.expected}

    @property
    def confirmed(self) -> dict[str, Array]:
        """What the second tier has given of each result, and what is copied."""
        return {name: self._laid(name, _confirmed, True).astype(bool) for name in self.case.expected}

    def at_once(self, most: int) -> int:
        """As few as the longest of its calls admits."""
        return min((part.second.at_once(most) for _, part in self.parts), default=most)

    def __call__(self, name: str, golden: Golden, flat: Array) -> tuple[Array, Array]:
        """Hi and lo of the elements at flat places of a result, from the call that each belongs to."""
        owner, place = self._places(name)
        hi, lo = np.zeros(len(flat)), np.zeros(len(flat))
        for number, (_, part) in enumerate(self.parts):
            mine = owner.flat[flat] == number
            if mine.any():
                hi[mine], lo[mine] = part.second(name, part.case.expected[name], place.flat[flat[mine]])
        return hi, lo

    def _places(self, name: str) -> tuple[Array, Array]:
        """Which call each element of a result belongs to, and where it lies in that call's."""
        if name not in self._owner:
            numbers = iter(range(len(self.parts)))
            owner = self._laid(name, lambda part, of: np.full(_hi(part, of).shape, next(numbers)), 0)
            place = self._laid(
                name, lambda part, of: np.arange(_hi(part, of).size).reshape(_hi(part, of).shape), 0
            )
            self._owner[name] = owner.astype(np.intp), place.astype(np.intp)
        return self._owner[name]

    def _laid(self, name: str, made: Callable[[Part, str], Array], copied: float) -> Array:
        """An array of each call, put together as the results are; what no call gives is filled up."""
        shape = self.case.expected[name].hi.shape
        if not self.parts or name not in self.parts[0][1].case.expected:
            return np.full(shape, copied)
        every = [share.arrange(name, made(part, name)) for share, part in self.parts]
        if self.draft.operation == PACKED:
            return np.concatenate(every, query_axis(name, len(shape)))
        return every[0]


def _hi(part: Part, name: str) -> Array:
    return part.case.expected[name].hi


def _error(part: Part, name: str) -> Array:
    return part.own_error[name]


def _confirmed(part: Part, name: str) -> Array:
    return part.confirmed.get(name, np.zeros(_hi(part, name).shape, bool))


def compose(draft: Draft, policies: tuple[str, ...], part: Callable[[Draft], Part]) -> Composed:
    """The operation's case, from its calls of attention, each certified by `part`."""
    found: list[Part] = []

    def made(of: Draft) -> Case:
        found.append(part(of))
        return found[-1].case

    case = build_served(draft, made, policies)
    return Composed(draft, case, list(zip(shares(draft), found, strict=True)))
