"""Answers that are an operand as it was given."""

from typing import Any

import numpy as np
import pytest
from wrong import rows_of

from conformance.diagnosis.search import diagnose
from conformance.telling.diagnosis import diagnosis_lines
from conformance.vectors.load import load_vectors


class Returning:
    """Returns one of its operands."""

    name, dtypes = "returning", ("float32",)

    def __init__(self, which: int, times: int = 1) -> None:
        self._which, self._times = which, times

    def scaled_dot_product_attention(self, *operands: Any, **_: Any) -> Any:
        return np.array(operands[self._which]) * self._times


CASES = tuple(
    case
    for case in load_vectors().cases
    if case.operation == "scaled_dot_product_attention"
    and case.chapter in ("attention", "mask")
    and case.elements < 500
    and not case.raises
)


def said(target: Any) -> str:
    found = diagnose(rows_of(target, CASES), CASES, "eager", [])
    return "\n".join(diagnosis_lines(found))


@pytest.mark.parametrize(
    ("which", "words"),
    [
        (0, "Your output is the query itself: key and value are not used"),
        (2, "Your output is the value itself: query and key are not used"),
    ],
)
def test_an_operand_that_is_returned_is_named(which: int, words: str) -> None:
    assert words in said(Returning(which))


def test_twice_the_query_is_not_the_query() -> None:
    assert "itself" not in said(Returning(0, times=2))
