"""Answers that are an operand as it was given: nothing was computed."""

from collections.abc import Sequence

import numpy as np

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Note
from conformance.dtypes import cast

SAID = {
    "query": "Your output is the query itself: key and value are not used",
    "key": "Your output is the key itself: query and value are not used",
    "value": "Your output is the value itself: query and key are not used",
}
ENOUGH = 2
"""Cases that show it."""
MOST = 0.8
"""The share of the failing rows with an output that have to be the operand."""


def by_returned(failures: Sequence[Failure]) -> list[Note]:
    """What is said where the output of most failing rows is an operand, number by number."""
    shown = [f for f in failures if f.outputs is not None and "output" in f.outputs]
    for name, said in SAID.items():
        those = tuple(f for f in shown if _is(f, name))
        if len({f.case.id for f in those}) >= ENOUGH and len(those) >= MOST * len(shown):
            return [Note(f"{name}-returned", said, ("ATT-1",), those, first=True)]
    return []


def _is(failure: Failure, name: str) -> bool:
    """Whether the output holds the numbers of an operand, of which there are some."""
    given, got = failure.case.inputs.get(name), (failure.outputs or {})["output"]
    if given is None or given.shape != got.shape or not got.size:
        return False
    with np.errstate(all="ignore"):
        return bool(np.array_equal(cast(given, failure.dtype), got, equal_nan=got.dtype.kind == "f"))
