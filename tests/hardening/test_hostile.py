"""A target that says whatever would do harm somewhere: it reaches no terminal, log, page or file as more than text."""

import json
import re
import tomllib
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from damage import EVIL, texts
from depth import DEEP, examples
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conformance.judging.verdict import Diagnosis, Got, Known, Row, Worst
from conformance.names import SDPA
from conformance.telling import recorder
from conformance.telling.badge import badge
from conformance.telling.baseline_writer import baseline_text
from conformance.telling.compare import compare
from conformance.telling.failure_message import assertion
from conformance.telling.github import comparison_markdown, run_markdown
from conformance.telling.junit import junit
from conformance.telling.merge_shards import join
from conformance.telling.page import render
from conformance.telling.progress import row_text
from conformance.telling.report import BaselineResult, FeatureResult, Report, TargetInfo, read_report
from conformance.telling.table import blame_table, comparison_lines, matrix_lines, matrix_table, run_table
from conformance.telling.terminal import inert, plain, safe
from conformance.vectors import load

COMMANDS = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)
"""What a CI obeys that reads a log."""


def odd(text: str) -> set[str]:
    """Characters that move a cursor, turn the writing or break a line where none is meant."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


# Any report


@st.composite
def rows(draw: Any, number: int) -> Row:
    verdict = draw(
        st.sampled_from(["pass", "fail", "error", "crash", "timeout", "unsupported", "xfail", "xpass"])
    )
    known = {"xfail": "fail", "xpass": "pass"}.get(verdict)
    return Row(
        case=f"{draw(texts)}/{draw(texts)}{number}",
        operation=draw(st.sampled_from([SDPA]) | texts),
        dtype=draw(st.sampled_from(["float64", "float16"])),
        verdict=verdict,
        covers=tuple(draw(st.lists(st.sampled_from(["ATT-1", "X-99"]), max_size=2))),
        features=tuple(draw(st.lists(texts, max_size=2))),
        message=draw(texts),
        error_over_bound=draw(st.none() | st.floats()),
        worst=draw(
            st.none()
            | st.builds(
                Worst, texts, st.lists(st.integers(0, 2**70), max_size=3).map(tuple), *[st.floats()] * 3
            )
        ),
        seconds=draw(st.floats(0, 1e308)),
        got=draw(
            st.just(())
            | st.tuples(
                st.builds(Got, texts, texts, st.lists(st.integers(0, 2**70), max_size=3).map(tuple), texts)
            )
        ),
        diagnosis=draw(st.just(()) | st.tuples(st.builds(Diagnosis, texts, st.integers(0), st.integers(0)))),
        known=draw(st.builds(Known, st.just(known), texts, texts)) if known else None,
    )


@st.composite
def reports(draw: Any) -> Report:
    counts = {
        "pass": 1,
        "fail": 2,
        "error": 0,
        "crash": 0,
        "timeout": 0,
        "unsupported": 0,
        "xfail": 0,
        "xpass": 0,
    }
    names = dict.fromkeys(("profile", "op", "device", "accuracy", "k"))
    return Report(
        suite_version=draw(texts),
        spec_version=draw(texts),
        vectors_sha256="0" * 64,
        target=TargetInfo(draw(texts), draw(st.none() | texts), draw(texts), "eager"),
        environment=draw(st.dictionaries(texts, texts, max_size=2)),
        command=tuple(draw(st.lists(texts, max_size=2))),
        status="incomplete",
        summary=counts,
        features={draw(texts): FeatureResult("incomplete", 1, 2)},
        profiles={draw(texts): "conformant"},
        untested_requirements=("ATT-2",),
        results=tuple(draw(rows(n)) for n in range(draw(st.integers(0, 3)))),
        options={**names, "k": draw(st.none() | texts), "dtype": [draw(texts)], "feature": [], "fresh": 1}
        | {"shard": draw(st.none() | st.sampled_from(["1/2", "3/3", "999999999/999999999"]))},
        baseline=draw(st.none() | st.builds(BaselineResult, texts, st.tuples(texts))),
    )


@given(report=reports())
@examples(10)
@pytest.mark.covers("CONF-8", "CONF-12")
def test_any_report_is_told_as_text(report: Report, make_case: Any, capsys: Any) -> None:
    out = Console(width=120, markup=False, emoji=False, highlight=False, force_terminal=False)
    for thing in (run_table(report), blame_table(report.results, []), matrix_table([report] * 3)):
        out.print(thing)
    comparison = compare(report, Report.from_json({**report.to_json(), "results": []}))
    for line in (*matrix_lines([report]), *comparison_lines(comparison), *join([report] * 2).notes):
        out.print(line if not isinstance(line, str) else plain(line), soft_wrap=True)
    for row in report.results:
        out.print(row_text(row), soft_wrap=True)
        out.print(row_text(row, verbose=True), soft_wrap=True)
        out.print(plain(assertion(make_case(), row)), soft_wrap=True)
    said = capsys.readouterr().out
    assert not odd(said)
    assert not COMMANDS.search(said)
    for text in (run_markdown(report), comparison_markdown(comparison)):
        assert not odd(text)
        assert not re.search("<|javascript:|@every", text.replace("<br>", ""))
    ElementTree.fromstring(junit(report).encode())
    assert not odd(json.loads(badge(report))["message"])
    known = tomllib.loads(baseline_text(report))["known"]
    assert len(known) <= sum(row.failed for row in report.results)
    assert Report.from_json(json.loads(recorder.text(report))).to_json() == report.to_json()
    if DEEP > 1:  # seconds each; tests/telling/page looks at some always
        page = render([report, report])
        assert not odd(page)
        assert page.count("<script") == 1, "its own"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("::error::x", r"\::error::x"),
        ("   ::set-output name=a::b", r"   \::set-output name=a::b"),
        ("a ##[add-mask]b ##vso[x]", r"a #\#[add-mask]b #\#vso[x]"),
        ("std::vector ## heading [1]", "std::vector ## heading [1]"),
        ("a\u2028::b", r"a\u2028::b"),
        ("a ::b", r"a \::b"),
    ],
)
def test_nothing_is_a_command_to_a_ci_that_reads_the_log(text: str, wanted: str) -> None:
    assert inert(text) == wanted
    assert str(plain(text)) == wanted


def test_nor_is_it_where_a_table_breaks_a_name(capsys: Any) -> None:
    names = ("0123456789::error::x", "chapter ::error::x", "01234567 ##[add-mask]x")
    made = [TargetInfo(name, "1", "x", "eager") for name in names]
    counts = dict.fromkeys(("pass", "fail", "error", "crash", "timeout", "unsupported"), 0)
    reports = [Report("1", "1", "0" * 64, t, {}, (), "incomplete", counts, {}, {}, (), ()) for t in made]
    for report in reports:
        Console(width=40, markup=False, emoji=False, highlight=False).print(matrix_table([report]))
    said = capsys.readouterr().out
    assert r"\::error" in said
    assert not COMMANDS.search(said)


@given(text=texts)
@examples(100)
def test_safe_text_is_printable_and_stays_what_it_was_where_it_can(text: str) -> None:
    assert not odd(safe(text))
    assert "\n" not in safe(text)
    if not odd(text) and "\n" not in text:
        assert safe(text) == text


# A whole run

TARGET = '''
import json, os, sys
import numpy as np

EVIL = json.loads(r"""{evil}""")
calls = 0

def attend(query, key, value):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def evil(query, key, value):
    """Right answers, and in between everything that is not one."""
    global calls
    calls += 1
    text = EVIL[calls // 2 % len(EVIL)]
    sys.stderr.write(text.encode("utf-8", "replace").decode() + "\\n")
    if calls % 2:
        return attend(query, key, value)
    if calls % 4:
        raise type(text[:40].replace("\\x00", ""), (Exception,), {})(text)
    return {"output": attend(query, key, value), text: query}

evil.name = EVIL[0]

def forging(query, key, value):
    """Writes an answer to the next question to every file that it holds: one of them is the protocol's."""
    for number in range(3, 64):
        try:
            os.write(number, b'{"id": "a/02", "outputs": {}}\\n')
        except OSError:
            pass
    return attend(query, key, value)
'''.replace("{evil}", json.dumps(EVIL))


@pytest.fixture
def run(
    command: Callable[..., Any],
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_vectors: Any,
    make_case: Any,
) -> Callable[..., Any]:
    vectors = make_vectors(*(make_case(f"a/{n:02}") for n in range(2 * len(EVIL) + 1)))
    monkeypatch.setattr(load, "load_vectors", lambda directory=None: vectors)
    return lambda name, *arguments: command("run", f"{target}:{name}", "--fresh", "off", *arguments)


@pytest.mark.covers("CONF-4", "CONF-6", "CONF-8")
def test_a_target_that_says_what_would_do_harm(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setattr("conformance.running.again.MOST", 0)  # its answers come in turns
    monkeypatch.setattr("conformance.running.layouts.TRIED", 0)
    names = ("report", "junit", "html", "badge", "write-baseline")
    files = {name: tmp_path / f"{name}.json" for name in names}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    before = sorted(path.name for path in tmp_path.iterdir())
    status, out, err = run("evil", "-v", "--no-diagnose", *options)
    assert status == 1
    for text in (out, err, summary.read_text(), files["html"].read_text()):
        assert not odd(text)
    for text in (out, err):
        assert not COMMANDS.search(text)
    report = read_report(files["report"])
    verdicts = [row.verdict for row in report.results]
    assert verdicts == [
        "pass" if n % 2 == 0 else "error" if n % 4 == 1 else "fail" for n in range(len(verdicts))
    ]
    ElementTree.parse(files["junit"])
    assert len(tomllib.loads(files["write-baseline"].read_text())["known"]) == verdicts.count(
        "fail"
    ) + verdicts.count("error")
    written = {*(path.name for path in files.values()), "summary.md", "__pycache__"}
    assert {path.name for path in tmp_path.iterdir()} - {*before} <= written


@pytest.mark.covers("PROTO-1", "CONF-4")
def test_an_answer_to_a_question_that_was_not_asked_yet(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert run("forging", "--report", path, "-k", "a/00 or a/01 or a/02", "-q", "--no-diagnose")[0] == 1
    rows = read_report(path).results
    assert not any(row.passed for row in rows)
    assert [row.message[:13] for row in rows[:2]] == ["invalid reply"] * 2
