"""Which of several results are wrong, where the others are right in every failing row."""

from collections.abc import Iterable, Sequence

from conformance.diagnosis.agree import Wrong
from conformance.diagnosis.failing import Failure

MOST = 100
"""Failing rows that are looked at, the smallest first."""
ENOUGH = 2
"""Cases that have a result which is right."""
NAMED = 4
"""Results that are named; more are the others."""


def by_results(failures: Sequence[Failure], policy: str) -> tuple[str, ...]:
    """A sentence for forward calls and one for gradients, where some of their results are wrong and others never."""
    said = []
    for gradients in (False, True):
        rows = [f for f in failures if f.outputs and not f.case.raises and f.case.gradients == gradients]
        if sentence := _sentence(rows[:MOST], policy, gradients):
            said.append(sentence)
    return tuple(said)


def _sentence(rows: Sequence[Failure], policy: str, gradients: bool) -> str:
    wrong, cases = dict[str, int](), dict[str, set[str]]()
    for row in rows:
        for name, right in Wrong(row, policy).results.items():
            cases.setdefault(name, set()).add(row.case.id)
            wrong[name] = wrong.get(name, 0) + (not right)
    bad = [name for name in cases if wrong[name]]
    good = [name for name in cases if not wrong[name] and len(cases[name]) >= ENOUGH]
    if not bad or not good or "output" in bad:  # that the lse or a cache is right says little of the output
        return ""
    are = "are" if len(bad) > 1 else "is"
    some = (
        f"the {'gradients' if len(bad) > 1 else 'gradient'} of {_joined(bad)}" if gradients else _joined(bad)
    )
    rest = f"{_joined(good)} {'are' if len(good) > 1 else 'is'}" if len(good) <= NAMED else "the others are"
    return f"Only {some} {are} wrong: {rest} right in all {len(rows)} failing rows looked at."


def _joined(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
