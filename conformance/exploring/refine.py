"""A condition on a size, whose limit lies between two sizes of cases, with the limit that experiments found."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from conformance.diagnosis.facts import more
from conformance.diagnosis.split import Split


class Found(Protocol):
    """What an experiment found of sizes: `q_len 25 or more`."""

    @property
    def sizes(self) -> Sequence[str]:
        """Conditions on sizes."""


def refined(splits: Iterable[Split], found: Iterable[Found]) -> tuple[Split, ...]:
    """The conditions, with `more than 24 queries` for `more than 32` where no row has from 25 to 32.

    One size that passes in a case may be the least that fails in another: of one row more than a tile little is wrong.
    """
    told = [each for needs in found for each in needs.sizes]
    return tuple(_refined(split, told) for split in splits)


def _refined(split: Split, told: Sequence[str]) -> Split:
    for gap in split.gaps:
        for words in told:
            name, least = _least(words)
            same = gap.size in (("q_len", "kv_len") if name == "lengths" else (name,))
            if least and same and gap.low <= least <= gap.high + 1:
                condition = split.condition.replace(gap.said, more(gap.size, least - 1))
                return replace(split, condition=condition, gaps=())
    return split


def _least(words: str) -> tuple[str, int]:
    """The size and its least value of `q_len 25 or more`; 0 of other conditions."""
    name, _, rest = words.partition(" ")
    number, _, more_than = rest.partition(" ")
    return (name, int(number)) if more_than == "or more" and number.isdigit() else (name, 0)
