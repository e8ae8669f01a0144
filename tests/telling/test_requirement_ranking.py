"""Which requirement a run's failures are put down to."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.defects.bank import DEFECTS
from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.messages import Question
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.telling.requirement_ranking import Blame, blame
from conformance.vectors.load import load_vectors


def row(verdict: Any, *covers: str) -> Row:
    return Row("a/b", SDPA, "float32", verdict, covers, ())


def test_counts_executed_rows() -> None:
    rows = [row("fail", "A-1", "A-2"), row("pass", "A-2"), row("unsupported", "A-1"), row("pass", "A-3")]
    assert blame(rows) == [Blame("A-1", 1, 1), Blame("A-2", 1, 2)]
    assert blame([]) == []


def test_a_failure_that_says_what_is_broken_counts_for_that_alone() -> None:
    said = replace(row("fail", "A-1", "A-2"), message="query was written to during the call (IND-5)")
    assert blame([said, row("pass", "A-1")]) == [Blame("IND-5", 1, 1)]
    numbers = replace(said, message="output[0] is 1, wanted 2 +- 0 (IND-5): 1 of 6 elements")
    assert [b.requirement for b in blame([numbers])] == ["A-1", "A-2"]
    assert [b.requirement for b in blame([said, said, row("fail", "A-3")])] == ["IND-5", "A-3"]


def test_one_small_case_does_not_come_before_what_explains_more() -> None:
    rows = [row("crash", "A-1")] * 9 + [row("pass", "A-1"), row("fail", "A-1", "A-2")]
    assert [b.requirement for b in blame(rows)] == ["A-1", "A-2"]


def test_what_few_rows_cover_is_left_out_where_another_explains_it() -> None:
    rows = [row("fail", "A-1")] * 4 + [row("fail", "A-1", "A-2")] * 2
    assert [b.requirement for b in blame(rows)] == ["A-1"]
    assert [b.requirement for b in blame([*rows, row("pass", "A-1")])] == ["A-1", "A-2"], "A-1 is not it"
    assert [b.requirement for b in blame([*rows, row("fail", "A-2")])] == ["A-1", "A-2"], "nor here"


def test_a_requirement_that_also_passes_comes_after_one_that_never_does() -> None:
    rows = [row("fail", "A-1", "A-2")] * 5 + [row("pass", "A-1")] * 5
    assert [b.requirement for b in blame(rows)] == ["A-2", "A-1"]


def test_a_requirement_that_mostly_passes_is_left_out_where_another_covers_its_failures() -> None:
    rows = [row("fail", "A-1", "A-2")] * 3 + [row("pass", "A-1")] * 4 + [row("pass", "A-2")] * 2
    assert [b.requirement for b in blame(rows)] == ["A-2"]
    assert [b.requirement for b in blame([*rows, row("fail", "A-1")])] == ["A-2", "A-1"], "not all of them"


@pytest.mark.parametrize(
    ("defect", "wanted", "never"),
    [
        ("scale-by-d-k-itself", "ATT-3", "ATT-4"),
        ("scale-argument-ignored", "ATT-4", "ATT-3"),
        ("mask-inverted", "MASK-1", "MASK-6"),
    ],
)
def test_a_planted_defect_is_put_down_to_what_it_violates(defect: str, wanted: str, never: str) -> None:
    planted = {d.id: d for d in DEFECTS}
    if defect not in planted:
        pytest.fail(f"the bank has no {defect}")
    asker = InProcess(adopt(planted[defect].implementation(), defect))
    with np.errstate(all="ignore"):
        rows = [
            answered(Question(case, "float32"), "fused", asker)
            for case in load_vectors().cases
            if case.judged("float32", "fused")
            and case.chapter in ("attention", "mask", "causal", "sizes", "heads")
        ]
    first = [b.requirement for b in blame(rows)][:6]
    assert wanted in first
    assert never not in first
