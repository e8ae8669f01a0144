"""What the page answers first, and failing cases by cause."""

from typing import Any

from conformance.judging.verdict import Diagnosis, Known


def test_one_run_has_a_headline_that_answers(page_over: Any, make_report: Any, make_row: Any) -> None:
    found = (Diagnosis("scale-by-d-k-itself", 2, 2),)
    rows = (make_row("fail", case="a/a", diagnosis=found), make_row("fail", case="a/b", diagnosis=found))
    page = page_over(make_report(*rows, make_row(case="a/c"), name="mine"))
    assert "mine is wrong Your logits are divided by d_k, not by its square root." in page.text
    assert "This explains 2 of 2 failures. 1 pass · 2 fail" in page.text
    (bar,) = (svg for svg in page.all("svg") if svg.get("class") == "bar")
    assert bar["aria-label"] == "1 pass · 2 fail"
    described = {a.get("property"): a["content"] for a in page.all("meta") if "property" in a}
    assert described["og:title"] == "mine is wrong"
    assert described["og:description"].startswith("mine: Your logits are divided by d_k")


def test_what_is_said_of_other_runs(page_over: Any, make_report: Any, make_row: Any) -> None:
    assert (
        "mine is conformant It passes all 1 test of what it supports."
        in page_over(make_report(make_row(), name="mine")).text
    )
    known = make_row("xfail", known=Known("fail", "so it is"))
    assert "It fails 1 test, all of them known, with a reason. 1 known" in page_over(make_report(known)).text
    failed = page_over(make_report(make_row("fail"), make_row(case="a/c")))
    assert "It fails 1 of 2 tests, most of all ATT-1 weighted sum of values." in failed.text


def test_many_runs_are_ranked_and_those_of_one_name_told_apart(
    page_over: Any, make_report: Any, make_row: Any
) -> None:
    half = make_report(make_row("fail"), make_row(case="a/c"), name="attention")
    whole = make_report(make_row(), make_row(case="a/c"), name="other")
    page = page_over(half, whole)
    assert "2 implementations, by share of tests that pass other 100 % It passes all" in page.text
    assert "attention 50 %" in page.text
    same = page_over(half, half)
    assert "1 x" in same.text, "the source in place of the name"
    assert "1 attention" not in same.text


def test_features_by_target(page_over: Any, make_report: Any, make_row: Any) -> None:
    needs = {"features": ("mask",)}
    one = make_report(make_row("fail", **needs), make_row(case="a/c", **needs), name="one", **needs)
    two = make_report(make_row("unsupported", message="does not support mask", **needs), name="two")
    assert "feature 1 one 2 two mask \u2717 1/2 \u2013" in page_over(one, two).text


def test_what_needs_no_feature_is_told_first(page_over: Any, make_report: Any, make_row: Any) -> None:
    report = make_report(make_row(), make_row("fail", case="a/c", features=("mask",)), features=("mask",))
    assert "feature 1 x plain attention \u2713 1 mask \u2717 1/1" in page_over(report).text


def test_training_without_gradients_is_not_supported(page_over: Any, make_report: Any, make_row: Any) -> None:
    assert "training \u2013 not supported" in page_over(make_report(make_row())).text
    gradient = make_row(case="a/g", operation="scaled_dot_product_attention_vjp")
    text = page_over(make_report(make_row(), gradient)).text
    assert "training \u2013" not in text


def test_one_diagnosis_of_all_dtypes_is_told_once(page_over: Any, make_report: Any, make_row: Any) -> None:
    found = {"diagnosis": (Diagnosis("scale-by-d-k-itself", 2, 2),), "error_over_bound": 2.0}
    rows = [make_row("fail", dtype=dtype, **found) for dtype in ("float32", "float16")]
    told = page_over(make_report(*rows)).text.rpartition(" Failures ")[2]
    assert told.count("Diagnosis. Your logits are divided by d_k") == 1


def test_failures_stand_by_cause(page_over: Any, make_report: Any, make_row: Any) -> None:
    found = (Diagnosis("scale-by-d-k-itself", 2, 4),)
    raised = "TypeError: no luck (x.py:3 in f); say array_type = 'torch'"
    report = make_report(
        make_row("fail", case="a/unexplained", error_over_bound=2.0, message="output is wrong"),
        make_row("fail", case="a/one", diagnosis=found, error_over_bound=2.0),
        make_row("fail", case="a/two", diagnosis=found, error_over_bound=2.0),
        make_row("error", case="a/raises", message=raised),
    )
    text = page_over(report).text
    causes = (
        "Your logits are divided by d_k, not by its square root. 2 cases",
        "error: say array_type = 'torch' 1 case",
        "Not explained by a known mistake 1 case",
    )
    places = [text.index(cause) for cause in causes]
    assert places == sorted(places)
    assert text.index("a/unexplained \u2717") > places[2]
