"""`--profile quick`: few cases of few shapes, for frameworks that compile each shape."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest

from conformance.running.messages import Hello
from conformance.vectors.case import Case

QUICK = "quick"
SHAPES = 3
"""Shapes of an operation from which cases are taken: those with the most cases."""
MOST = 60
"""How many cases are taken at most, of all operations together."""


def quick(cases: Iterable[Case], hello: Hello) -> frozenset[str]:
    """The IDs of cases that cover as many requirements as possible in few shapes; the same for the same claims."""
    able = [case for case in cases if _able(case, hello)]
    first, others = [], []
    for operation in dict.fromkeys(case.operation for case in able):
        those = [case for case in able if case.operation == operation]
        common = {shape for shape, _ in Counter(map(_shape, those)).most_common(SHAPES)}
        those = [case for case in those if _shape(case) in common]
        first.append(_covering(those))
        ids = {case.id for case in first[-1]}
        others.append([case for case in those if case.id not in ids])
    turns = (case for group in (first, others) for turn in zip_longest(*group) for case in turn if case)
    return frozenset(case.id for case in islice(turns, MOST))


def _able(case: Case, hello: Hello) -> bool:
    features = hello.features_of.get(case.operation, hello.features)
    return case.operation in hello.operations and set(case.features) <= set(features) and not case.raises


def _shape(case: Case) -> tuple[tuple[int, ...], ...]:
    return tuple(
        case.inputs[name].shape for name in ("query", "key", "value", "w_q", "w_o") if name in case.inputs
    )


def _covering(cases: Sequence[Case]) -> list[Case]:
    """Cases that together cover every requirement and every set of features, the one that adds most first."""
    left, chosen, seen = list(cases), [], set[object]()
    while left:
        best = max(left, key=lambda case: len(_facts(case) - seen))
        if not _facts(best) - seen:
            break
        chosen.append(best)
        left.remove(best)
        seen |= _facts(best)
    return chosen


def _facts(case: Case) -> set[object]:
    return {*case.covers, case.features}
