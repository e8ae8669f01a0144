"""JUnit XML: every row once, counted right, and readable whatever a target says."""

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.judging.verdict import VERDICTS
from conformance.running.baseline import Baseline, Entry
from conformance.running.request import Request
from conformance.telling.junit import clean, junit

KINDS = {
    "pass": None, "fail": "failure", "error": "error", "crash": "error", "timeout": "error", "unsupported": "skipped",
    "xfail": "skipped", "xpass": "failure",
}  # fmt: skip


def test_a_case_for_each_row_in_the_suite_of_its_chapter(make_report: Any, make_row: Any) -> None:
    baseline = Baseline(
        "k.toml", (Entry("a/xfail", "why", report="https://x.example/1"), Entry("a/xpass", "why"))
    )
    verdicts = {
        "a/xfail": "fail",
        "a/xpass": "pass",
        **{f"a/{v}": v for v in VERDICTS if not v.startswith("x")},
    }
    rows = [
        make_row(v, case, message=f"said {v}" if v != "pass" else "", seconds=0.5)
        for case, v in verdicts.items()
    ]
    report = make_report(*rows, make_row("pass", "b/c"), request=Request(target="x.py", baseline=baseline))
    root = ElementTree.fromstring(junit(report))
    assert {k: root.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": str(len(rows) + 1 + 2), "failures": "4", "errors": "3", "skipped": "2",
    }  # fmt: skip
    one, two, baseline_suite = root.iter("testsuite")
    assert [(s.get("name"), s.get("tests"), s.get("time")) for s in (one, two)] == [
        ("a", "8", "4.000"), ("b", "1", "0.000"),
    ]  # fmt: skip
    for case in one.iter("testcase"):
        verdict = (case.get("name") or "").removeprefix("a/").removesuffix("[float32]")
        (told,) = [child for child in case if child.tag != "properties"] or [None]
        assert (None if told is None else told.tag) == KINDS[verdict]
        if told is not None:
            assert told.get("type") == verdict
    properties = {p.get("name"): p.get("value") for p in one.find("properties") or ()}
    assert properties.items() >= {"target": "x", "accuracy": "eager", "status": "non-conformant"}.items()
    messages = {c.get("name"): c[-1].get("message") for c in one.iter("testcase")}
    assert messages["a/xfail[float32]"] == "why https://x.example/1 (fail: said fail)"
    assert messages["a/crash[float32]"] == "said crash"
    assert len(list(baseline_suite.iter("failure"))) == 2, "entries of cases that the vectors lack"


ANY = st.text(st.characters(exclude_categories=()), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=ANY, message=ANY)
def test_any_text(name: str, message: str, make_report: Any, make_row: Any) -> None:
    text = junit(make_report(make_row("fail", message=message, case=f"a/{name}")))
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root.find(".//failure") is not None
    assert not any(ord(c) < 32 and c not in "\n\r\t" for c in text)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x00\x1b[2J", "a\\x00\\x1b[2J"),
        ("\ufffe\uffff", "\\ufffe\\uffff"),
        ("\ud800", "\\ud800"),
        ("<&\"'> \U0001f600", "<&\"'> \U0001f600"),
    ],
)
def test_what_xml_cannot_hold(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
