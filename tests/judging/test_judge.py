"""The judge against a table of answers whose verdicts are known, and broken judges against the same table."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.judging import judge as judging
from conformance.judging import measure as measuring
from conformance.judging.judge import judge
from conformance.vectors.case import Array, Bound, Case, Golden, Signature

NAN, INF = np.nan, np.inf
EXACT = np.arange(1.0, 13.0).reshape(1, 3, 4) / 4
"""float32 represents every element."""


def golden(exact: Array = EXACT, worst: Any = 1e-3, rms: Any = 1e-3, **fields: Any) -> Golden:
    hi = np.asarray(exact, np.float64)
    bound = Bound(np.broadcast_to(worst, hi.shape), np.broadcast_to(rms, hi.shape))
    halved = Bound(bound.worst / 2, bound.rms / 2)
    made = {
        "shape": hi.shape,
        "rows": None,
        "hi": hi,
        "lo": np.zeros_like(hi),
        "rms_applies": False,
        "bounds": {
            "float32": {"eager": bound, "fused": halved, "tf32": bound},
            "float16": {"eager": bound, "fused": halved},
            "float64": {"eager": bound, "fused": halved},
        },
    }
    return Golden(**{**made, **fields})


def case(**fields: Any) -> Case:
    made: dict[str, Any] = {
        "id": "a/b",
        "note": "",
        "operation": "scaled_dot_product_attention",
        "covers": ("ATT-1", "SHAPE-5"),
        "features": (),
        "dtypes": ("float32", "float16", "float64"),
        "excluded": {},
        "options": {},
        "inputs": {},
        "expected": {"output": golden()},
    }
    return Case(**{**made, **fields})


def off(
    change: float, index: tuple[int, ...] = (0, 1, 3), exact: Array = EXACT, dtype: str = "float32"
) -> Array:
    array = np.array(exact, dtype)
    array[index] = array[index] + change
    return array


def noisy(relative: float, size: int) -> Array:
    """Errors of one size and alternating sign: no element is out, their RMS may be."""
    exact = np.ones((1, size, 1))
    return (exact + relative * 1e-3 * np.where(np.arange(size) % 2, 1, -1)[:, None]).astype(np.float32)


STEP = np.linspace(1.0, 2.0, 12).reshape(1, 3, 4)
MARKED = case(
    expected={
        "output": golden(
            np.where(EXACT == 3.0, NAN, EXACT),
            worst=1e-2,
            rms=STEP * 1e-3,
            signatures={"scale": Signature(STEP * EXACT, {"float32": {"eager": 2e-4, "fused": 1e-4}})},
        )
    }
)


def moved(delta: float, along: Array = STEP * EXACT) -> Mapping[str, Array]:
    """Errors that fit a signature, or any others."""
    return {"output": (MARKED.expected["output"].hi + delta * along).astype(np.float32)}


ROWS = golden(EXACT[:, [0, 2]], shape=(1, 3, 4), rows=(0, 2))
LSE = {
    "output": golden(),
    "lse": golden(EXACT[..., 0], shape=(1, 3)),
}
ASKED_LSE = case(expected=LSE, options={"return_lse": True})
HOLED = golden(np.where(EXACT == 2.0, NAN, np.where(EXACT == 1.0, -INF, EXACT)))
TINY = 2.0**-60

# what it shows: (case, dtype, policy, outputs, the verdict it deserves)
TABLE: dict[str, tuple[Case, str, str, Mapping[str, Array], str]] = {
    "exact": (case(), "float32", "eager", {"output": off(0)}, "pass"),
    "just within W": (case(), "float32", "eager", {"output": off(0.9e-3)}, "pass"),
    "just beyond W": (case(), "float32", "eager", {"output": off(1.1e-3)}, "fail"),
    "beyond W below": (case(), "float32", "eager", {"output": off(-1.1e-3)}, "fail"),
    "beyond 6 s": (
        case(expected={"output": golden(worst=1e-1)}), "float32", "eager", {"output": off(7e-3)}, "fail",
    ),
    "within 6 s": (
        case(expected={"output": golden(worst=1e-1)}), "float32", "eager", {"output": off(5e-3)}, "pass",
    ),
    "s of 0 leaves W": (
        case(expected={"output": golden(rms=0.0)}), "float32", "eager", {"output": off(0.9e-3)}, "pass",
    ),
    "W of 0 is exact": (
        case(expected={"output": golden(worst=0.0, rms=0.0)}), "float32", "eager", {"output": off(1e-6)}, "fail",
    ),
    "W of 0 met": (
        case(expected={"output": golden(worst=0.0, rms=0.0)}), "float32", "eager", {"output": off(0)}, "pass",
    ),
    "lo counts": (
        case(expected={"output": golden(worst=TINY, rms=0.0, lo=np.full(EXACT.shape, 2.0**-58))}),
        "float64", "eager", {"output": np.array(EXACT)}, "fail",
    ),
    "NaN bound lets nothing pass": (
        case(expected={"output": golden(worst=NAN)}), "float32", "eager", {"output": off(0)}, "fail",
    ),
    "NaN in the answer": (case(), "float32", "eager", {"output": off(NAN)}, "fail"),
    "infinite answer": (case(), "float32", "eager", {"output": off(INF)}, "fail"),
    "NaN and -inf where wanted": (
        case(expected={"output": HOLED}), "float32", "eager", {"output": HOLED.hi.astype(np.float32)}, "pass",
    ),
    "-inf for NaN": (
        case(expected={"output": HOLED}), "float32", "eager",
        {"output": np.where(np.isnan(HOLED.hi), -INF, HOLED.hi).astype(np.float32)}, "fail",
    ),
    "inf for -inf": (
        case(expected={"output": HOLED}), "float32", "eager",
        {"output": np.where(np.isinf(HOLED.hi), INF, HOLED.hi).astype(np.float32)}, "fail",
    ),
    "zero for NaN": (
        case(expected={"output": HOLED}), "float32", "eager",
        {"output": np.nan_to_num(HOLED.hi, neginf=-INF).astype(np.float32)}, "fail",
    ),
    "nothing returned": (case(), "float32", "eager", {}, "fail"),
    "lse missing": (ASKED_LSE, "float32", "eager", {"output": off(0)}, "fail"),
    "lse unasked": (case(), "float32", "eager", {"output": off(0), "lse": off(0)[..., 0]}, "fail"),
    "lse wrong": (
        ASKED_LSE, "float32", "eager", {"output": off(0), "lse": off(0)[..., 1]}, "fail",
    ),
    "an axis too many": (case(), "float32", "eager", {"output": off(0)[None]}, "fail"),
    "transposed": (case(), "float32", "eager", {"output": off(0).swapaxes(-1, -2)}, "fail"),
    "float64 for float32": (case(), "float32", "eager", {"output": off(0, dtype="float64")}, "fail"),
    "lse in float32 for float16": (
        ASKED_LSE, "float16", "eager",
        {"output": off(0, dtype="float16"), "lse": off(0)[..., 0]}, "pass",
    ),
    "lse in float16 for float16": (
        ASKED_LSE, "float16", "eager",
        {"output": off(0, dtype="float16"), "lse": off(0, dtype="float16")[..., 0]}, "pass",
    ),
    "lse in float64 for float16": (
        ASKED_LSE, "float16", "eager",
        {"output": off(0, dtype="float16"), "lse": off(0, dtype="float64")[..., 0]}, "fail",
    ),
    "lse in float32 for float64": (
        ASKED_LSE, "float64", "eager", {"output": np.array(EXACT), "lse": off(0)[..., 0]}, "fail",
    ),
    "output in float32 for float16": (case(), "float16", "eager", {"output": off(0)}, "fail"),
    "held rows right": (
        case(expected={"output": ROWS}), "float32", "eager", {"output": off(9.0, (0, 1, 3))}, "pass",
    ),
    "a held row wrong": (
        case(expected={"output": ROWS}), "float32", "eager", {"output": off(9.0, (0, 2, 3))}, "fail",
    ),
    "fused bound holds under fused": (case(), "float32", "fused", {"output": off(0.9e-3)}, "fail"),
    "tf32 concerns float32 alone": (case(), "float16", "tf32", {"output": off(0, dtype="float16")}, "pass"),
    "RMS of many": (
        case(expected={"output": golden(np.ones((1, 100, 1)), worst=1.0, rms_applies=True)}),
        "float32", "eager", {"output": noisy(1.3, 100)}, "fail",
    ),
    "RMS of many in few rows": (
        case(expected={"output": golden(np.ones((1, 1, 100)), worst=1.0, rms_applies=True)}),
        "float32", "eager", {"output": noisy(1.3, 100).reshape(1, 1, 100)}, "pass",
    ),
    "RMS of many met": (
        case(expected={"output": golden(np.ones((1, 100, 1)), worst=1.0, rms_applies=True)}),
        "float32", "eager", {"output": noisy(1.2, 100)}, "pass",
    ),
    "RMS of some": (
        case(expected={"output": golden(np.ones((1, 99, 1)), worst=1.0, rms_applies=True)}),
        "float32", "eager", {"output": noisy(1.9, 99)}, "pass",
    ),
    "RMS of some broken": (
        case(expected={"output": golden(np.ones((1, 99, 1)), worst=1.0, rms_applies=True)}),
        "float32", "eager", {"output": noisy(2.1, 99)}, "fail",
    ),
    "RMS of few": (
        case(expected={"output": golden(np.ones((1, 7, 1)), worst=1.0, rms_applies=True)}),
        "float32", "eager", {"output": noisy(4.0, 7)}, "pass",
    ),
    "RMS not to be asked": (
        case(expected={"output": golden(np.ones((1, 100, 1)), worst=1.0)}),
        "float32", "eager", {"output": noisy(4.0, 100)}, "pass",
    ),
    "RMS counts scored elements": (
        case(
            expected={
                "output": golden(
                    np.ones((1, 200, 1)),
                    worst=1.0,
                    rms=np.where(np.arange(200) < 50, 1e-3, 0)[:, None],
                    rms_applies=True,
                )
            }
        ),
        "float32", "eager", {"output": noisy(1.9, 200)}, "pass",
    ),
    "RMS of a reduced policy": (
        case(expected={"output": golden(np.ones((1, 100, 1)), worst=1.0, rms_applies=True)}),
        "float32", "tf32", {"output": noisy(1.9, 100)}, "pass",
    ),
    "along a signature": (MARKED, "float32", "eager", moved(2.2e-4), "fail"),
    "against a signature": (MARKED, "float32", "eager", moved(-2.2e-4), "fail"),
    "little along a signature": (MARKED, "float32", "eager", moved(1.8e-4), "pass"),
    "across a signature": (MARKED, "float32", "eager", moved(2.2e-4, np.where(np.arange(4) % 2, 1, -1)), "pass"),
    "the signature of a policy": (MARKED, "float32", "fused", moved(1.2e-4), "fail"),
    "no signature of a policy": (MARKED, "float32", "tf32", moved(2.2e-4), "pass"),
    "no signature of a dtype": (
        MARKED, "float16", "eager", {"output": moved(2.2e-4)["output"].astype(np.float16)}, "pass",
    ),
    "did not raise": (case(raises=True, expected={}), "float32", "eager", {"output": off(0)}, "fail"),
    "no element": (
        case(expected={"output": golden(np.zeros((0, 3, 4)))}),
        "float32", "eager", {"output": np.zeros((0, 3, 4), np.float32)}, "pass",
    ),
}  # fmt: skip

BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "names are not looked at": (judging, "names_problem", lambda case, outputs: "" if outputs else "nothing"),
    "nothing is asked for": (judging, "asked", lambda case: {"output", "weights", "lse"}),
    "shape is not looked at": (judging, "shape_problem", lambda case, outputs: ""),
    "dtype is not looked at": (judging, "dtype_problem", lambda case, dtype, outputs: ""),
    "non-finite is not looked at": (judging, "misplaced_problem", lambda measures, dtype: ""),
    "rule 1 is not looked at": (judging, "error_problem", lambda measures, dtype: ""),
    "rule 2 is not looked at": (judging, "rms_problem", lambda measures: ""),
    "rule 3 is not looked at": (judging, "signature_problem", lambda measures: ""),
    "a signature is looked along in size": (
        measuring, "matched_filter", lambda got, golden, direction, bound: float(np.nanmax(np.abs(got - golden.hi))),
    ),
    "s is left out of the filter": (
        measuring, "matched_filter", lambda got, golden, g, bound: float(np.nansum((got - golden.hi) * g) / np.sum(g)),
    ),
    "kinds are not told apart": (measuring, "kinds", lambda array: ~np.isfinite(array)),
    "infinities are not told apart": (
        measuring, "kinds", lambda array: np.select([np.isnan(array), np.isinf(array)], [1, 2], 0),
    ),
    "a NaN passes": (measuring, "exceeds", lambda error, limit: error > limit),
    "errors are signed": (measuring, "distance", lambda got, golden: (got - golden.hi) - golden.lo),
    "lo is forgotten": (measuring, "distance", lambda got, golden: np.abs(got - golden.hi)),
    "W alone": (measuring, "allowed", lambda bound: bound.worst),
    "6 s alone": (measuring, "allowed", lambda bound: 6 * bound.rms),
    "s of 0 means exact": (measuring, "allowed", lambda bound: np.minimum(bound.worst, 6 * bound.rms)),
    "W of 0 means anything": (
        measuring, "allowed", lambda bound: np.where(bound.worst == 0, INF, np.minimum(bound.worst, 6 * bound.rms)),
    ),
    "one RMS limit, tight": (measuring, "rms_limit", lambda count, rows, policy: 1.25),
    "rows are not counted": (measuring, "rows_of", lambda output, scored: int(scored.sum())),
    "one RMS limit, loose": (measuring, "rms_limit", lambda count, rows, policy: 2.0),
    "the first rows are taken": (
        measuring, "held_rows",
        lambda output, golden, array: array if golden.rows is None else array[..., : len(golden.rows), :],
    ),
    "rows are taken from the last axis": (measuring, "query_axis", lambda output, rank: rank - 1),
    "RMS of an all-zero s": (measuring, "RMS_SOME", 0),
    "RMS tight from 8 on": (measuring, "RMS_MANY", 8),
}  # fmt: skip


def surprises(judge: Callable[..., Any]) -> list[str]:
    """The entries of the table that a judge gets wrong; an exception is wrong too."""
    wrong = []
    for name, (asked, dtype, policy, outputs, deserved) in TABLE.items():
        try:
            verdict = judge(asked, dtype, policy, outputs).verdict
        except Exception:
            verdict = "raised"
        if verdict != deserved:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.covers("CONF-5", "NUM-1", "NUM-2", "NUM-6", "NUM-7")
def test_table(name: str) -> None:
    asked, dtype, policy, outputs, deserved = TABLE[name]
    judgement = judge(asked, dtype, policy, outputs)
    assert (judgement.verdict, bool(judgement.message)) == (deserved, deserved == "fail")


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.covers("CONF-5", "NUM-1", "NUM-2", "NUM-6", "NUM-7")
def test_broken_judge_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, replacement = BROKEN[name]
    monkeypatch.setattr(module, function, replacement)
    assert surprises(judge), f"no answer of the table tells that {name}"


@pytest.mark.covers("CONF-5")
def test_a_judge_that_forgets_raises_is_caught() -> None:
    assert surprises(lambda case, *rest: judge(replace(case, raises=False), *rest))


def test_a_judge_that_forgets_the_policy_is_caught() -> None:
    assert surprises(lambda case, dtype, policy, outputs: judge(case, dtype, "eager", outputs))


@pytest.mark.covers("CONF-5")
def test_messages() -> None:
    def message(outputs: Mapping[str, Array], asked: Case | None = None) -> str:
        return judge(asked or case(), "float32", "eager", outputs).message

    assert (
        message({"output": np.zeros((2, 3), np.float32)})
        == "output has shape (2, 3), wanted (1, 3, 4) (SHAPE-2)"
    )
    assert message({"output": EXACT.copy()}) == "output has dtype float64, wanted float32 (DTYPE-1)"
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
