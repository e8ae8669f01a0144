"""Of several outputs, or elements without a finite golden, the judge speaks of the right one."""

from dataclasses import replace

import numpy as np

from conformance.defects.judges.answers import EXACT, case, golden
from conformance.judging.judge import judge
from conformance.judging.measure import deviation, measure, rows_of
from conformance.judging.verdict import Judgement
from conformance.names import SDPA_VJP
from conformance.vectors.case import Array, Bound, Golden, Signature

INF = EXACT.copy()
INF[0, 1, 2] = np.inf


def judged(first: Array, second: Array, **fields: object) -> Judgement:
    asked = replace(
        case(expected={"key": golden(), "query": golden()}), operation=SDPA_VJP, **fields  # type: ignore[arg-type]
    )  # fmt: skip
    return judge(asked, "float32", "eager", {"key": first.astype("f4"), "query": second.astype("f4")})


def test_the_gradient_that_errs_most_is_named_as_one() -> None:
    assert judged(EXACT + 1, EXACT + 9).message.startswith("gradient of query[0, 0, 0] is ")
    assert judged(EXACT + 9, EXACT + 1).message.startswith("gradient of key[0, 0, 0] is ")


def test_an_element_of_another_kind_is_worse_than_any_error() -> None:
    exact = {"key": golden(), "query": replace(golden(), hi=INF)}
    found = judged(EXACT + 9, EXACT, expected=exact)
    assert found.worst is not None
    assert (found.worst.output, found.worst.index) == ("query", (0, 1, 2))
    assert (found.worst.expected, found.worst.allowed) == (np.inf, 0.0)


def test_an_exact_element_says_nothing_of_a_signature() -> None:
    plain = golden()
    bounds = {
        dtype: {name: replace(b, rms=np.where(np.isinf(INF), 0.0, b.rms)) for name, b in of.items()}
        for dtype, of in plain.bounds.items()
    }
    limits = {dtype: dict.fromkeys(of, 1e-3) for dtype, of in bounds.items()}
    held = replace(plain, bounds=bounds, signatures={"gain": Signature(np.ones_like(EXACT), limits)})
    asked = case(expected={"output": held})
    assert judge(asked, "float32", "eager", {"output": EXACT.astype("f4")}).verdict == "pass"


def test_the_second_half_of_a_golden_counts() -> None:
    held = replace(golden(), lo=np.full_like(EXACT, 2.0**-54))
    assert np.all(deviation(EXACT + 2.0**-50, held) == 2.0**-50 - 2.0**-54)


def test_rule_2_begins_with_eight_elements_and_counts_rows_by_output() -> None:
    for count, applies in ((7, False), (8, True)):
        eight = np.zeros((1, count))
        bounds = {"float32": {"eager": Bound(np.ones_like(eight), np.ones_like(eight))}}
        held = Golden(eight.shape, None, eight, eight, True, bounds)
        assert (measure("output", held, "float32", "eager", eight).rms is not None) is applies
    scored = np.ones((2, 50), bool)
    assert (rows_of("lse", scored), rows_of("output", scored)) == (100, 2)
    scored = np.ones((2, 9, 5), bool)
    scored[0, 2:] = False
    assert [rows_of("w_q", scored, tokens) for tokens in (None, 1, 3, 40)] == [11, 2, 5, 11]
    ones = np.ones((2, 50))
    held = Golden(ones.shape, None, ones, 0 * ones, True, {"float32": {"eager": Bound(ones, ones)}})
    limits = [measure(name, held, "float32", "eager", ones).rms_limit for name in ("lse", "output")]
    assert limits == [1.25, 2.5]
