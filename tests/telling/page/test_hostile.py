"""Whatever a report says, the page says it as text: nothing of it becomes an element, runs, or breaks the layout."""

import base64
import re
import unicodedata
from collections import Counter
from typing import Any

import pytest

from conformance.judging.verdict import Diagnosis, Got, Worst
from conformance.telling.page.failures import MESSAGE
from conformance.telling.report import Report

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style></title></textarea>--><img src=x onerror=alert(1)>",
    "\" onmouseover=alert(1) x=\"",
    "' autofocus onfocus=alert(1) '",
    "{{ 7 * 7 }}{% raw %}",
    "\x00\x1b[2J\r\n\u202eevil\u2066\ud800\ufeff",
    "javascript:alert(1)",
    "&lt;b&gt;&#0;",
    "a b=c>d",
)  # fmt: skip


def hostile_report(text: str, make_report: Any, make_row: Any) -> Report:
    row = make_row(
        "fail",
        case=f"a/{text}",
        message=text,
        features=(text,),
        worst=Worst(text, (0,), float("nan"), float("inf"), -1.0),
        error_over_bound=float("inf"),
        got=(
            Got(text, "float32", (1,), base64.b64encode(bytes(4)).decode()),
            Got("output", "float32", (1, 1), base64.b64encode(bytes(4)).decode()),
        ),
        diagnosis=(Diagnosis(text, 1, 2),),
    )
    said = {"name": text, "version": text, "environment": {text: text}}
    return make_report(
        row, make_row("crash", message=text, case=text), sha256="1" * 64, source=text, **said
    )  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_stays_text(text: str, page_over: Any, make_report: Any, make_row: Any) -> None:
    report = hostile_report(text, make_report, make_row)
    harmless = hostile_report("harmless", make_report, make_row)
    page, plain = page_over(report, report), page_over(harmless, harmless)
    kinds, wanted = (Counter((tag, *sorted(a)) for tag, a in p.elements) for p in (page, plain))
    assert kinds == wanted
    assert not page.unbalanced
    assert not [name for _, a in page.elements for name in a if name.startswith("on")]
    odd = {c for c in page.html if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert odd <= {"\n"}
    page.html.encode()


def test_text_is_shown_as_it_came(page_over: Any, make_report: Any, make_row: Any) -> None:
    page = page_over(hostile_report("<b>&amp;", make_report, make_row))
    assert "1 <b>&amp; <b>&amp;" in page.text, "name and version"
    assert "a/<b>&amp; \u2717 float32" in page.text
    page = page_over(hostile_report("\x1b[2J\u202e", make_report, make_row))
    assert "\\x1b[2J\\u202e" in page.text


def test_huge_texts_are_cut(page_over: Any, make_report: Any, make_row: Any) -> None:
    huge = "<" * 1_000_000
    made = hostile_report("x", make_report, make_row).to_json()
    made["target"].update(name=huge, version=huge, source=huge)
    made["environment"], made["command"] = {huge: huge}, [huge] * 3
    made["results"][0].update(message=huge, worst={**made["results"][0]["worst"], "output": huge})
    page = page_over(Report.from_json(made))
    assert len(page.html) < 300_000
    assert page.html.count("&lt;" * MESSAGE) == 0


@pytest.mark.parametrize(
    "got",
    [
        Got("output", "float32", (2, 3, 4), "no base64 at all \u2603"),
        Got("output", "float32", (2, 3, 4), "AAAA"),
        Got("output", "complex64", (1,), "AAAAAAAAAAA="),
        Got("output", "float32", (10**30, 0), ""),
        Got("output", "float32", (1,) * 99, "AAAAAA=="),
        Got("output", "int64", (), base64.b64encode(bytes(8)).decode()),
        Got("output", "float32", (0, 4), ""),
        Got("lse", "bool", (1, 3), base64.b64encode(bytes(3)).decode()),
        Got("output", "float32", (2, 3, 4), base64.b64encode(b"\xff" * 96).decode()),
    ],
    ids=range(9),
)
def test_arrays_that_are_none(
    got: Got, page_over: Any, make_report: Any, make_row: Any, make_case: Any
) -> None:
    row = make_row("fail", case="core/plain", message="wrong", got=(got,))
    page = page_over(make_report(row), cases=(make_case(),))
    assert re.search("The answer is not shown: |got (output|lse)", page.text)
    assert "expected output" in page.text


def test_rows_the_suite_does_not_know(
    page_over: Any, make_report: Any, make_row: Any, make_case: Any
) -> None:
    rows = [
        make_row("fail", case="core/plain", dtype="float16", covers=("NEW-99",)),
        make_row("fail", case="none/such", operation="other"),
        make_row("error", case="bare"),
    ]
    page = page_over(make_report(*rows), cases=(make_case(dtypes=("float32",)),))
    assert "NEW-99 not in this version of the specification" in page.text
    assert "none/such \u2717 float32" in page.text
