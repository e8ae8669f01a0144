"""The judge against a table of answers whose verdicts are known, and broken judges against the same table."""

from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.defects.judges.answers import EXACT, INF, MARKED, NAN, ROWS, TABLE, case, golden, moved, off
from conformance.defects.judges.broken import JUDGES, caught, caught_by, surprises
from conformance.judging.judge import judge, measured
from conformance.vectors.case import Array, Case
from conformance.vectors.generate.build import build
from conformance.vectors.generate.draft import attend, gradient


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.covers("CONF-5", "NUM-1", "NUM-2", "NUM-6", "NUM-7")
def test_table(name: str) -> None:
    asked, dtype, policy, outputs, deserved = TABLE[name]
    judgement = judge(asked, dtype, policy, outputs)
    assert (judgement.verdict, bool(judgement.message)) == (deserved, deserved == "fail")


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.covers("CONF-5", "NUM-1", "NUM-2", "NUM-6", "NUM-7", "GRAD-2")
def test_broken_judge_is_caught(name: str) -> None:
    assert caught_by(name), f"no answer of the table tells that {name}"


def test_the_judge_is_whole_again_after_a_broken_one() -> None:
    assert [name for name, shown in caught() if not shown] == []
    assert surprises(judge) == []


@pytest.mark.parametrize(
    ("name", "options", "inputs"),
    [
        ("weights", {"return_weights": True}, ()),
        ("lse", {"return_lse": True}, ()),
        ("present_key", {}, ("past_key",)),
        ("present_value", {}, ("past_value",)),
    ],
)
@pytest.mark.covers("SHAPE-2", "CONF-5")
def test_an_output_that_was_asked_for_may_come_without_a_golden(
    name: str, options: dict[str, bool], inputs: tuple[str, ...]
) -> None:
    outputs = {"output": EXACT.astype(np.float32), name: EXACT.astype(np.float32)}
    plain = case()
    asked = replace(
        plain, options=options, inputs={**plain.inputs, **dict.fromkeys(inputs, EXACT.astype(np.float32))}
    )
    assert judge(asked, "float32", "eager", outputs).verdict == "pass"
    assert (
        judge(plain, "float32", "eager", outputs).message
        == f"{name} was returned but not asked for: got output, {name} (SHAPE-2)"
    )


@pytest.mark.covers("CONF-5")
def test_messages() -> None:
    def message(outputs: Mapping[str, Array], asked: Case | None = None) -> str:
        return judge(asked or case(), "float32", "eager", outputs).message

    assert (
        message({"output": np.zeros((2, 3), np.float32)})
        == "output has shape (2, 3), wanted (1, 3, 4) (SHAPE-2)"
    )
    wider = "output has dtype float64, wanted float32 (DTYPE-1)"
    assert message({"output": EXACT.copy()}) == f"{wider}; its numbers are right"
    assert message({"output": 2 * EXACT + 1}) == wider
    assert message({}) == "output is missing: got nothing (SHAPE-2)"
    assert message({"output": off(NAN)}) == "output[0, 1, 3] is nan, wanted 2 (NUM-6); 1 of 12 elements"
    assert (
        message({"output": off(2.0)})
        == "output[0, 1, 3] is 4, wanted 2 +- 0.001: 2e+03 times what is allowed (NUM-1); 1 of 12 elements"
    )
    exact = case(expected={"output": golden(worst=0.0, rms=0.0)})
    assert (
        message({"output": off(2.0)}, exact)
        == "output[0, 1, 3] is 4, wanted exactly 2 (NUM-1); 1 of 12 elements"
    )
    assert message({"output": off(0)}, case(raises=True)) == "accepted what must be refused (ATT-1, SHAPE-5)"
    asked, dtype, policy, outputs, _ = TABLE["RMS of many"]
    assert judge(asked, dtype, policy, outputs).message == (
        "output has an RMS error of 1.3 times the predicted one, at most 1.25 is allowed over 100 elements (NUM-2)"
    )
    assert message(moved(2.2e-4), MARKED) == (
        "output has errors like those of a scale that is off by +0.00022; at most 0.0002 is allowed (NUM-7)"
    )


def test_measures() -> None:
    judgement = judge(case(), "float32", "eager", {"output": off(2.0**-11)})
    assert judgement.error_over_bound == pytest.approx(2.0**-11 / 1e-3)
    assert judgement.rms_over_sigma is None
    worst = judgement.worst
    assert worst is not None
    assert (worst.output, worst.index) == ("output", (0, 1, 3))
    assert (worst.got, worst.expected, worst.allowed) == (2.0 + 2.0**-11, 2.0, 1e-3)


def test_worst_index_is_in_the_whole_output() -> None:
    worst = judge(case(expected={"output": ROWS}), "float32", "eager", {"output": off(9.0, (0, 2, 3))}).worst
    assert worst is not None
    assert worst.index == (0, 2, 3)


def test_lse_rows_are_its_last_axis() -> None:
    held = golden(EXACT[..., 0][:, [0, 2]], shape=(1, 3), rows=(0, 2))
    asked = case(expected={"lse": held}, options={"return_lse": True})
    right = EXACT[..., 0].astype(np.float32)
    assert judge(asked, "float32", "eager", {"lse": right}).verdict == "pass"
    right[0, 2] = 0
    assert judge(asked, "float32", "eager", {"lse": right}).worst.index == (0, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "policy", "grade"),
    [(0.4e-3, "eager", "fused"), (0.6e-3, "eager", "eager"), (0.4e-3, "fused", "fused"), (0.6e-3, "fused", None),
     (0.4e-3, "tf32", None), (9.0, "eager", None)],
)  # fmt: skip
def test_grade(change: float, policy: str, grade: str | None) -> None:
    assert judge(case(), "float32", policy, {"output": off(change)}).grade == grade


def test_grade_where_fused_has_no_bound() -> None:
    plain = golden()
    lone = replace(plain, bounds={"float32": {"eager": plain.bounds["float32"]["eager"]}})
    assert judge(case(expected={"output": lone}), "float32", "eager", {"output": off(0)}).grade == "eager"


def test_bfloat16_is_read() -> None:
    plain = golden()
    bounds = {"bfloat16": plain.bounds["float32"]}
    asked = case(dtypes=("bfloat16",), expected={"output": replace(plain, bounds=bounds)})
    outputs = {"output": EXACT.astype(ml_dtypes.bfloat16)}
    assert judge(asked, "bfloat16", "eager", outputs).verdict == "pass"
    outputs["output"][0, 0, 0] = np.nan
    assert judge(asked, "bfloat16", "eager", outputs).verdict == "fail"


@given(error=st.floats(0, 4), worst=st.floats(0, 2), rms=st.floats(0, 2))
@pytest.mark.covers("NUM-1")
def test_rule_1_is_the_published_formula(error: float, worst: float, rms: float) -> None:
    exact = np.zeros((1, 1, 1))
    asked = case(expected={"output": golden(exact, worst=worst, rms=rms)})
    allowed = worst if rms == 0 else min(worst, 6 * rms)
    verdict = judge(asked, "float64", "eager", {"output": exact + error}).verdict
    assert verdict == ("pass" if error <= allowed else "fail")


@given(
    got=st.lists(st.floats(width=32, allow_subnormal=True), min_size=12, max_size=12),
    hi=st.lists(st.floats(width=32), min_size=12, max_size=12),
)
@pytest.mark.covers("NUM-1", "NUM-6")
def test_a_pass_means_every_element_is_near_or_of_its_kind(got: list[float], hi: list[float]) -> None:
    wanted, array = (np.array(x, np.float64).reshape(1, 3, 4) for x in (hi, got))
    asked = case(expected={"output": golden(wanted, worst=1.0, rms=1.0)})
    judgement = judge(asked, "float32", "eager", {"output": array.astype(np.float32)})
    with np.errstate(all="ignore"):
        near = (np.abs(array - wanted) <= 1.0) | (array == wanted) | (np.isnan(array) & np.isnan(wanted))
    assert (judgement.verdict == "pass") == bool(near.all())


@given(st.integers(0, 11), st.sampled_from([NAN, INF, -INF, 100.0]))
@pytest.mark.covers("NUM-1")
def test_one_wrong_element_is_found_wherever_it_is(place: int, value: float) -> None:
    array = EXACT.astype(np.float32)
    array.flat[place] = value
    judgement = judge(case(), "float32", "eager", {"output": array})
    assert judgement.verdict == "fail"
    assert judgement.worst is not None
    assert judgement.worst.index == tuple(int(i) for i in np.unravel_index(place, (1, 3, 4)))


def test_rows_of_a_key_gradient_count_as_many_as_queries_read_it():
    """With one query every key has the error of one log-sum-exp, so that they are not so many errors."""
    made = gradient(attend("judge/one-query", "x", "NUM-1", q_len=1, kv_len=40, heads=1, batch=(), d_v=9))
    case = build(made)
    outputs = {name: golden.hi + golden.lo for name, golden in case.expected.items()}
    found = {m.output: m for m in measured(case, "float64", "eager", outputs)}
    assert (found["value"].rms_limit, found["key"].rms_limit) == (2.5, 2.5)
