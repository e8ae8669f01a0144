"""Which options meet in which case: few cases, each of few options, in which all that has to meet does.

A small covering array, built greedily and always the same.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST = 7
"""Options that one case has: with more, a failure says less."""
CELL, PAIR, TRIPLE = 40, 6, 1
"""What a cell of the table, a pair and a triple that are still empty are worth."""


@dataclass(frozen=True)
class Meeting:
    """The options of one case, where and at which dtypes."""

    place: tuple[str, ...]  # size class and path
    dtypes: tuple[str, ...]
    options: tuple[str, ...]
    number: int


@dataclass(frozen=True)
class Wish:
    """What has to meet."""

    options: Sequence[str]
    places: Sequence[tuple[str, ...]]
    dtypes: Sequence[tuple[str, ...]]  # taken in turns
    needs: Mapping[str, tuple[str, ...]]  # option -> those of which it needs one beside it


def met(options: Iterable[str], count: int) -> Iterator[tuple[str, ...]]:
    """The pairs, triples, ... of some options, each in the order of the alphabet."""
    return itertools.combinations(sorted(options), count)


def meetings(wish: Wish) -> list[Meeting]:
    """Cases until no cell of option x place x dtype is empty, all pairs meet on each path, and all triples once."""
    every = {dtype for of in wish.dtypes for dtype in of}
    cells = set(itertools.product(wish.options, wish.places, sorted(every)))
    paths = {place[-1] for place in wish.places}
    pairs = {(path, pair) for path in paths for pair in met(wish.options, 2)}
    triples = set(met(wish.options, 3))
    found: list[Meeting] = []
    turn = 0
    while cells or pairs or triples:
        place = wish.places[turn % len(wish.places)]
        dtypes = wish.dtypes[sum(divmod(turn, len(wish.places))) % len(wish.dtypes)]
        turn += 1
        if (
            not triples
            and not _left(place, dtypes, cells)
            and not any(path == place[-1] for path, _ in pairs)
        ):
            continue
        options = _chosen(wish, place, dtypes, cells, pairs, triples)
        cells -= set(itertools.product(options, [place], dtypes))
        pairs -= {(place[-1], pair) for pair in met(options, 2)}
        triples -= set(met(options, 3))
        found.append(Meeting(place, dtypes, options, len(found)))
    return found


def _chosen(
    wish: Wish,
    place: tuple[str, ...],
    dtypes: tuple[str, ...],
    cells: set[tuple[str, tuple[str, ...], str]],
    pairs: set[tuple[str, tuple[str, ...]]],
    triples: set[tuple[str, ...]],
) -> tuple[str, ...]:
    """At most so many options, those first that fill most."""

    def worth(options: frozenset[str]) -> int:
        return (
            CELL * sum((o, place, d) in cells for o in options for d in dtypes)
            + PAIR * sum((place[-1], pair) in pairs for pair in met(options, 2))
            + TRIPLE * sum(triple in triples for triple in met(options, 3))
        )

    starts = [*sorted(triples)[:1], *sorted(pair for path, pair in pairs if path == place[-1])[:1]]
    starts += [(option,) for option in _left(place, dtypes, cells)[:1]]
    options = frozenset(starts[0])
    while len(options) < MOST:
        more = [options | {o} for o in wish.options if o not in options]
        more = [m for m in more if len(_lacking(wish, m)) <= MOST - len(m)]
        best = max(more, key=worth)
        if worth(best) == worth(options) and not _lacking(wish, options):
            break
        options = best
    for option in _lacking(wish, options):
        options |= {wish.needs[option][len(triples) % len(wish.needs[option])]}
    return tuple(o for o in wish.options if o in options)


def _left(
    place: tuple[str, ...], dtypes: tuple[str, ...], cells: set[tuple[str, tuple[str, ...], str]]
) -> list[str]:
    """The options that have an empty cell there."""
    return sorted({option for option, where, dtype in cells if where == place and dtype in dtypes})


def _lacking(wish: Wish, options: frozenset[str]) -> list[str]:
    """The options that need another one beside them, which is not there."""
    return sorted(o for o in options if o in wish.needs and not options & set(wish.needs[o]))
