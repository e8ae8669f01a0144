"""The page: what it says of runs, requirements and failures, and that it is one file which asks for nothing."""

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from conformance.exploring.saved import read_cases
from conformance.judging.verdict import Diagnosis, Worst
from conformance.telling.page.failures import failures
from conformance.telling.requirements import read_requirements


def scaled_dot_product_attention(query: Any, key: Any, value: Any) -> Any:
    return value * 2


def numbers(svg: dict[str, str]) -> Any:
    values = np.frombuffer(base64.b64decode(svg["data-v"]), "<f4")
    return values.reshape(-1, int(svg["data-w"]))


def drawn(page: Any, label: str) -> list[dict[str, str]]:
    return [svg for svg in page.all("svg") if svg.get("aria-label", "").startswith(label)]


@pytest.fixture
def page(page_over: Any, make_report: Any, make_case: Any, make_row: Any, run_row: Any) -> Any:
    """Two runs: one that fails a case, one that lacks it."""
    case = make_case()
    failed = run_row(case, scaled_dot_product_attention)
    first = make_report(failed, make_row(error_over_bound=0.25), name="wrong", version="2.0")
    second = make_report(
        make_row(error_over_bound=0.5), make_row("unsupported", covers=("ATT-5",)), name="right"
    )
    return page_over(first, second, cases=(case,))


def test_it_is_one_file_that_asks_for_nothing(page: Any) -> None:
    assert not page.unbalanced
    for name in ("src", "srcset", "action", "data", "poster", "style"):
        assert not [element for element in page.elements if name in element[1]]
    targets = [a["href"] for tag in ("a", "link") for a in page.all(tag)]
    assert {target for target in targets if not target.startswith("#")} == {
        "data:,",
        *(a["href"] for a in page.all("a", download="core-plain.json")),
    }
    assert not re.search(
        r"@import|url\(|fetch\(|XMLHttp|import\(|https?:",
        "".join(page.raw["script"] + page.raw["style"]).replace("http://www.w3.org/2000/svg", ""),
    )
    ids = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert max(ids.values()) == 1
    assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)


def test_its_policy_runs_nothing_but_its_own_script_and_style(page: Any) -> None:
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        (text,) = page.raw[tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_runs(page: Any) -> None:
    assert "1 wrong 2.0" in page.text
    assert "\u2717 non-conformant accuracy eager" in page.text
    assert "Failing requirements, most informative first ATT-1 weighted sum of values 1 of 2" in page.text
    assert "command run x" in page.text
    assert "numpy " + np.__version__ in page.text


def test_requirements_by_run(page: Any) -> None:
    (att_1,) = re.findall(r"ATT-1 .*? ATT-5", page.text[page.text.index("requirement 1 wrong 2 right") :])
    title = next(r.title for r in read_requirements() if r.id == "ATT-1")
    assert att_1.startswith(f"ATT-1 weighted sum of values {title} MUST")
    assert "Rationale." in att_1
    assert att_1.endswith("\u2717 1/2 \u2713 1 ATT-5")
    (att_5,) = re.findall(r"ATT-5 .*?(?=\d+ requirements not tested in any run)", page.text)
    assert att_5.strip().endswith("\u2013")


def test_every_row_by_run(page: Any) -> None:
    table = page.text[page.text.index("case dtype 1 wrong 2 right") :]
    assert table.startswith("case dtype 1 wrong 2 right core/plain float32 \u2717 ")
    assert "case dtype 1 wrong 2 right a/b float32 \u2713 0.25 \u2013" in table
    assert [a["data-v"] for a in page.all("tr") if "data-v" in a] == ["f.", "pu"]


def test_a_failure_in_words(page: Any) -> None:
    command = "mha-conformance run x.py -k core/plain --dtype float32"
    assert re.search(r"core/plain \u2717 float32 output\[[\d, ]+\] is ", page.text), (
        "one line of a closed box"
    )
    save = "Save the case mha-conformance run x.py --case core-plain.json"
    assert f"Copy the command Copy a link {command} {save} A small case of the tests." in page.text
    assert [b["data-copy"] for b in page.all("button") if "data-copy" in b] == [command]
    assert re.search(
        r"float32 \u2717 fail output\[[\d, ]+\] is \S+, wanted \S+ \+- 1e-06: \S+ times", page.text
    )
    assert re.search(
        r"worst output\[\d, \d, \d\]: got \S+, expected \S+, allowed \u00b11e-6; error ÷ tolerance", page.text
    )


def test_a_failure_in_pictures(page: Any, make_case: Any) -> None:
    case = make_case()
    got = [numbers(svg) for svg in drawn(page, "got output[")]
    np.testing.assert_array_equal(got, case.inputs["value"] * 2)
    expected = [numbers(svg) for svg in drawn(page, "expected output[")]
    np.testing.assert_allclose(expected, case.expected["output"].hi, rtol=1e-6)
    errors = np.array([numbers(svg) for svg in drawn(page, "error ÷ tolerance of output[")])
    off = np.abs(case.inputs["value"] * 2.0 - case.expected["output"].hi) / 1e-6
    np.testing.assert_allclose(errors, off, rtol=1e-4)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal([numbers(svg) for svg in drawn(page, f"{name}[")], case.inputs[name])


def test_the_weights_of_each_head(page: Any, make_case: Any) -> None:
    weights = np.array([numbers(svg) for svg in drawn(page, "weights[")])
    assert weights.shape == (2, 3, 3)
    value, output = make_case().inputs["value"], make_case().expected["output"].hi
    np.testing.assert_allclose(weights @ value, output, rtol=1e-5)


def test_pictures_are_told_to_who_does_not_see_them(page: Any) -> None:
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or (svg["role"] == "img" and len(svg["aria-label"]) > 10)
    (first, _) = drawn(page, "got output[")
    assert re.fullmatch(r"got output\[0\], 3 by 4, \S+ to \S+", first["aria-label"])


def test_a_diagnosis_is_said_in_the_bank_s_words(page_over: Any, make_report: Any, make_row: Any) -> None:
    from conformance.defects.bank import DEFECTS

    known, unknown = Diagnosis(DEFECTS[0].id, 3, 4), Diagnosis("nobody-knows-it", 1, 4)
    page = page_over(make_report(make_row("fail", message="wrong", diagnosis=(known, unknown))))
    said = f"Diagnosis. {DEFECTS[0].sentence} ( {DEFECTS[0].id} reproduces 3 of 4 wrong answers.)"
    assert page.text.count(said) == 2, "of the run and of the row"
    assert "Diagnosis. A known defect. ( nobody-knows-it reproduces 1 of 4" in page.text


def test_other_vectors_are_said_and_only_the_answer_shown(
    page_over: Any, make_report: Any, make_case: Any, run_row: Any
) -> None:
    case = make_case()
    report = make_report(run_row(case, scaled_dot_product_attention), sha256="1" * 64)
    page = page_over(report, cases=(case,))
    assert "Other vectors." in page.text
    assert "Inputs and expected values are not shown" in page.text
    assert len(drawn(page, "got output[")) == 2
    assert not drawn(page, "expected") + drawn(page, "query") + drawn(page, "weights")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"got_left_out": "too much"}, "The answer is not shown: too much."),
        ({}, "The answer is not shown: the report does not hold it."),
        ({"verdict": "crash"}, "The answer is not shown: nothing came back."),
    ],
)
def test_an_answer_that_is_not_there_is_said(
    fields: Any, said: str, page_over: Any, make_report: Any, make_case: Any, make_row: Any
) -> None:
    row = make_row(**{"verdict": "fail", "case": "core/plain", "message": "wrong", **fields})
    page = page_over(make_report(row), cases=(make_case(),))
    assert said in page.text
    assert len(drawn(page, "expected output[")) == 2
    assert not drawn(page, "got")


def test_another_shape_is_drawn_beside_what_was_expected(
    page_over: Any, make_report: Any, make_case: Any, run_row: Any
) -> None:
    row = run_row(make_case(), lambda query, key, value: value[..., :1])
    page = page_over(make_report(row), cases=(make_case(),))
    assert "got output (2, 3, 1)" in page.text
    assert not drawn(page, "error ÷ tolerance of output")


def test_what_must_be_refused_has_inputs_alone(
    page_over: Any, make_report: Any, make_case: Any, run_row: Any
) -> None:
    case = make_case(expected={}, raises=True)
    page = page_over(make_report(run_row(case, scaled_dot_product_attention)), cases=(case,))
    assert drawn(page, "got output[")
    assert drawn(page, "query[")
    assert not drawn(page, "weights")


def test_nothing_failed(page_over: Any, make_report: Any, make_row: Any) -> None:
    page = page_over(make_report(make_row(error_over_bound=0.0)))
    assert "Nothing failed." in page.text
    assert "float32 1 x 1 1 0 0 0" in page.text, "one row, exact"


def test_the_worst_element_of_a_report_that_lies(
    page_over: Any, make_report: Any, make_case: Any, make_row: Any
) -> None:
    for index in ((9, 9, 9), (), (0,)):
        worst = Worst("output", index, float("nan"), 1.0, 0.5)
        page = page_over(make_report(make_row("fail", case="core/plain", worst=worst)), cases=(make_case(),))
        assert "got NaN, expected 1, allowed \u00b10.5" in page.text


def saved(page: Any) -> Any:
    """What the first file that a page holds says."""
    (link, *_) = (a for a in page.all("a") if "download" in a)
    kind, _, text = link["href"].partition(",")
    assert kind == "data:application/json"
    return json.loads(unquote(text))


def test_a_failing_case_is_a_file_to_run(page: Any, make_case: Any, tmp_path: Path) -> None:
    path = tmp_path / "core-plain.json"
    path.write_text(json.dumps(saved(page)), "utf-8")
    (found,) = read_cases(path)
    case = make_case()
    assert (found.id, found.note, found.covers) == (case.id, case.note, case.covers)
    for name, array in case.operands("float32").items():
        np.testing.assert_array_equal(found.inputs[name], array)
    assert "mha-conformance run x.py --case core-plain.json" in page.text


@pytest.mark.parametrize("why", ["refused", "large"])
def test_a_case_that_is_no_file_has_a_command(
    why: str, page_over: Any, make_report: Any, make_case: Any, make_row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(make_case(), raises=why == "refused")
    if why == "large":
        monkeypatch.setattr("conformance.telling.page.case_files.MOST_OF_FILE", 100)
    page = page_over(make_report(make_row("fail", case=case.id)), cases=(case,))
    assert not [a for a in page.all("a") if "download" in a]
    assert (
        "Copy the command for its numbers mha-conformance show core/plain --json > core-plain.json"
        in page.text
    )


def test_files_end_where_the_page_is_full(make_report: Any, make_case: Any, make_row: Any) -> None:
    cases = [replace(make_case(), id=f"core/n{n}") for n in range(3)]
    report = make_report(*(make_row("fail", case=case.id) for case in cases))
    known = {case.id: case for case in cases}
    every, _ = failures([report], [known], {})
    size = len(every[0].file)
    assert size == len(every[2].file) > 100
    some, _ = failures([report], [known], {}, most_of_files=2 * size + 1)
    assert [bool(failure.file) for failure in some] == [True, True, False]
    assert some[2].file_name == "core-n2.json"


def test_chapters_with_failures_come_first_and_are_open(
    page_over: Any, make_report: Any, make_row: Any
) -> None:
    rows = [make_row(case="a/one"), make_row(case="a/two"), make_row("unsupported", case="b/one")]
    rows += [make_row("fail", case="c/one"), make_row(case="c/two"), make_row("xfail", case="d/one")]
    page = page_over(make_report(*rows))
    found = [(a["data-chapter"], "open" in a) for a in page.all("details") if "data-chapter" in a]
    assert found == [("c", True), ("d", True), ("a", False), ("b", False)]
    for heading in ("c \u2717 1 failed \u2713 1 passed", "a \u2713 2 passed", "b \u2013 1 not supported"):
        assert heading in page.text
