"""Which broken requirement tells most about the rows that fail."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from conformance.judging.verdict import Row
from conformance.names import DENSE
from conformance.telling.requirements import id_order

GATHERED = ("PACK-", "PAGE-", "LAT-", "MERGE-")
"""How requirements begin of operations that are attention on gathered operands: where attention fails, so do these."""
FEW = 3
"""Executed rows below which a requirement that fails tells little next to one that covers the same failures."""

SAID = re.compile(r"\(((?:IND|CONF)-\d+)\)$")
"""How a message ends that says what is broken: something that any case would show, whatever it is about."""
ASPECTS = ("IND-", "NUM-", "CONF-")
"""How requirements begin that ask for the same in another form of call: where plain calls fail, so do these."""


@dataclass(frozen=True)
class Blame:
    """How many of the executed rows that cover a requirement fail."""

    requirement: str
    failed: int
    tested: int


def blame(rows: Iterable[Row], causes: Sequence[str] = ()) -> list[Blame]:
    """The requirements of failing rows: `causes`, which a diagnosis names, then the most informative first.

    A requirement tells the more, the better "it is broken" predicts which rows fail: all that cover it, and
    no others. Dice's coefficient of the two sets counts just that. Looking at the share of failures alone
    puts requirements first that one small case covers. Those are left out where one with more rows fails in
    all of them and covers the failures as well. So is one of which more rows pass than fail, where another
    covers all its failures and fails in a larger share of its own rows. A failure whose message says what is
    broken counts for that alone. Requirements of gradients come after the others where forward calls fail too, and
    those of gathered operands where attention itself fails, since they follow it. What asks for the same in another
    form of call is left out where most failures are of calls in plain form.
    """
    executed = [row for row in rows if row.executed]
    dense = any(row.failed and row.operation in DENSE for row in executed)
    every = sum(row.failed and (row.operation in DENSE or not dense) for row in executed)
    tested = Counter(requirement for row in executed for requirement in _put_down(row))
    failures: dict[str, set[int]] = {}
    for number, row in enumerate(executed):
        for requirement in _put_down(row) if row.failed else ():
            failures.setdefault(requirement, set()).add(number)
    broken = [those for name, those in failures.items() if FEW <= tested[name] == len(those)]
    blamed = [
        Blame(name, len(those), tested[name])
        for name, those in failures.items()
        if name in causes
        or (
            (tested[name] >= FEW or not any(those <= others for others in broken))
            and not (2 * len(those) < tested[name] and _better(name, failures, tested))
            and not (name.startswith(ASPECTS) and 2 * len(those) < every)
        )
    ]
    forward = any(row.failed and not row.operation.endswith("_vjp") for row in executed)
    place = {name: number for number, name in enumerate(causes)}
    return sorted(
        blamed,
        key=lambda b: (
            place.get(b.requirement, len(place)),
            (forward and b.requirement.startswith("GRAD-")) or (dense and b.requirement.startswith(GATHERED)),
            -2 * b.failed / (b.tested + every),
            b.tested,
            id_order(b.requirement),
        ),
    )


def _put_down(row: Row) -> tuple[str, ...]:
    """The requirements that a row may tell about."""
    said = SAID.search(row.message) if row.failed else None
    return (said[1],) if said else row.covers


def _better(name: str, failures: Mapping[str, set[int]], tested: Mapping[str, int]) -> bool:
    """Whether another requirement covers the same failures, and fails in a larger share of what covers it."""
    share = len(failures[name]) / tested[name]
    return any(
        failures[name] <= those and tested[other] >= FEW and len(those) / tested[other] > share
        for other, those in failures.items()
    )
