"""Limits and requirement IDs as the specification has them."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.defects.judges.answers import EXACT, case, golden
from conformance.judging.judge import judge
from conformance.judging.measure import rms_limit
from conformance.names import REDUCED_POLICIES, SDPA_VJP


@pytest.mark.parametrize(
    ("count", "rows", "limits"),
    [
        (100, 16, (1.25, 2.0)),
        (99, 16, (2.0, 3.0)),
        (100, 15, (2.0, 3.0)),
        (8, 4, (2.0, 3.0)),
        (100, 3, (2.5, 3.5)),
        (8, 1, (2.5, 3.5)),
    ],
)
@pytest.mark.covers("NUM-2")
def test_the_limits_of_rule_2(count: int, rows: int, limits: tuple[float, float]) -> None:
    plain, reduced = limits
    assert {rms_limit(count, rows, policy) for policy in ("eager", "fused")} == {plain}
    assert {rms_limit(count, rows, policy) for policy in REDUCED_POLICIES} == {reduced}


@pytest.mark.parametrize(
    ("name", "gradient", "rule"),
    [
        ("output", False, "DTYPE-1"),
        ("lse", False, "DTYPE-6"),
        ("query", True, "GRAD-2"),
        ("lse", True, "GRAD-2"),
    ],
)
@pytest.mark.covers("DTYPE-1", "DTYPE-6", "GRAD-2")
def test_which_rule_another_dtype_breaks(name: str, gradient: bool, rule: str) -> None:
    asked = case(expected={name: golden()}, options={"return_lse": True})
    asked = replace(asked, operation=SDPA_VJP) if gradient else asked
    message = judge(asked, "float64", "eager", {name: EXACT.astype(np.float32)}).message
    assert message == f"{asked.label(name)} has dtype float32, wanted float64 ({rule}); its numbers are right"


@pytest.mark.covers("SHAPE-2", "GRAD-2")
@pytest.mark.parametrize(("gradient", "told"), [(False, "{} (SHAPE-2)"), (True, "{} (GRAD-2)")])
def test_which_rule_a_missing_and_an_unasked_output_break(gradient: bool, told: str) -> None:
    asked = case(expected={"query": golden()})
    asked = replace(asked, operation=SDPA_VJP) if gradient else asked
    label = asked.label("query")
    for outputs, message in (
        ({}, f"{label} is missing: got nothing"),
        ({"query": EXACT, "key": EXACT}, "key was returned but not asked for: got query, key"),
    ):
        assert judge(asked, "float64", "eager", outputs).message == told.format(message)


def test_a_judgement_says_how_near_it_was() -> None:
    held = replace(golden(), rms_applies=True)
    bound = held.bounds["float64"]["eager"]
    off = EXACT + bound.rms / 2
    found = judge(case(expected={"output": held}), "float64", "eager", {"output": off})
    assert found.rms_over_sigma == pytest.approx(0.5, rel=0.05)
    assert found.error_over_bound == pytest.approx(
        float(np.max((off - EXACT) / np.minimum(bound.worst, 6 * bound.rms)))
    )
