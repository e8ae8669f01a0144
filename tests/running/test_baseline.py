"""Baselines: strict both ways, and a plain line for everything that is wrong with one."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import UsageError
from conformance.judging.verdict import FAILURES, Row
from conformance.names import SDPA
from conformance.running.baseline import MOST_DOTS, Baseline, Entry, baseline_of, read_baseline

HELD = {"a/b": ("float64", "float32"), "a/c": ("float32",)}


def row(verdict: Any = "fail", case: str = "a/b", dtype: str = "float32") -> Row:
    return Row(case, SDPA, dtype, verdict, ("ATT-1",), (), message="off by one")


def known(*entries: Entry) -> Baseline:
    return Baseline("known.toml", entries)


def problems(*entries: Entry, rows: Any = (), due: Any = ()) -> list[str]:
    return [p.removeprefix("known.toml: ") for p in known(*entries).problems(rows, HELD, due)]


@pytest.mark.parametrize("verdict", FAILURES)
@pytest.mark.covers("CONF-14")
def test_a_known_failure_is_expected_and_still_a_failure(verdict: Any) -> None:
    seen = known(Entry("a/b", "why", report="https://x.example/1")).seen(row(verdict))
    assert (seen.verdict, seen.failed, seen.unexpected, seen.executed) == ("xfail", True, False, True)
    assert seen.known is not None
    assert (seen.known.verdict, seen.known.reason, seen.known.report) == (
        verdict,
        "why",
        "https://x.example/1",
    )
    assert seen.message == "off by one"


@pytest.mark.covers("CONF-14", "CONF-15")
def test_a_pass_against_it_fails_the_run_and_is_still_a_pass() -> None:
    seen = known(Entry("a/b", "why")).seen(row("pass"))
    assert (seen.verdict, seen.failed, seen.passed, seen.unexpected) == ("xpass", False, True, True)
    assert seen.message == "passes, though known.toml knows it to fail"


def test_another_verdict_is_not_what_is_known() -> None:
    seen = known(Entry("a/b", "why", verdicts=("fail", "error"))).seen(row("crash"))
    assert (seen.verdict, seen.unexpected) == ("crash", True)
    assert seen.message == "off by one (known as fail or error, not as crash: known.toml)"


@pytest.mark.parametrize(
    "untouched",
    [row(case="a/c"), row(dtype="float64"), row("unsupported"), row("unsupported", dtype="float64")],
)
def test_what_no_entry_names_stays(untouched: Row) -> None:
    assert known(Entry("a/b", "why", ("float32",))).seen(untouched) == untouched


FLAWS = [
    (Entry("a/b", ""), "a/b: its reason is empty; say why it is known to fail (CONF-15)"),
    (Entry("a/b", " \n"), "a/b: its reason is empty; say why it is known to fail (CONF-15)"),
    (Entry("a/bb", "w"), "a/bb: no case has this ID; did you mean 'a/b'? (CONF-15)"),
    (
        Entry("a/b", "w", ("float33",)),
        "a/b float33: 'float33' is not a dtype; did you mean 'float32'? (CONF-15)",
    ),
    (Entry("a/c", "w", ("float64",)), "a/c float64: the case has no row in float64 (CONF-15)"),
]


@pytest.mark.parametrize(("entry", "problem"), FLAWS)
@pytest.mark.covers("CONF-15")
def test_what_is_wrong_whatever_was_run(entry: Entry, problem: str) -> None:
    assert problems(entry) == [problem]


@pytest.mark.covers("CONF-15")
def test_stale_entries() -> None:
    both = [("a/b", "float64"), ("a/b", "float32")]
    entry, narrow = Entry("a/b", "w"), Entry("a/b", "w", ("float64", "float32"))
    assert problems(entry, rows=[row()], due=both) == [], "one dtype is enough where none is named"
    assert problems(narrow, rows=[row()], due=both) == [
        "a/b float64 float32: it is stale: float64 was not executed (CONF-15)"
    ]
    assert problems(entry, rows=[row("unsupported")], due=both) == [
        "a/b: it is stale: the case was not executed (CONF-15)"
    ]
    assert problems(entry, narrow, due=[])[1:] == [], "what the run leaves out is not looked at"


@pytest.mark.covers("CONF-15")
def test_two_entries_about_one_row() -> None:
    twice = "another entry is about the same rows (CONF-15)"
    assert problems(Entry("a/b", "w"), Entry("a/b", "w", ("float32",))) == [f"a/b float32: {twice}"]
    assert problems(Entry("a/b", "w", ("float64",)), Entry("a/b", "w", ("float32",))) == []


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(
        'baseline_version = 1\n[[known]]\ncase = "a/b"\nreason = "w"\n[[known]]\ncase = "a/c"\nreason = ""\n'
        'dtypes = ["float32"]\nverdicts = ["crash"]\nreport = "https://x.example/1"\n'
    )
    assert read_baseline(path).entries == (
        Entry("a/b", "w"), Entry("a/c", "", ("float32",), ("crash",), "https://x.example/1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("known = [", "is not TOML"),
        (b"\xff", "is not TOML"),
        ("", "'baseline_version' is a required property"),
        ("baseline_version = 2\nknown = []", "1 was expected"),
        ("baseline_version = 1\nknown = [{case = 'a/b'}]", r"known\[0]: 'reason' is a required property"),
        ("baseline_version = 1\nknown = [{case = 'a', reason = 'w', dtype = 'x'}]", "'dtype' was unexpected"),
        (
            "baseline_version = 1\nknown = [{case = 'a', reason = 'w', verdicts = ['pass']}]",
            "'pass' is not one of",
        ),
        (
            "baseline_version = 1\nknown = [{case = 'a', reason = 'w', report = 'javascript:x'}]",
            "does not match",
        ),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: Any, message: str) -> None:
    path = tmp_path / "known.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        read_baseline(path)


def test_a_baseline_of_what_failed() -> None:
    rows = [row("fail"), row("fail", dtype="float64"), row("crash", case="a/c"), row("pass", case="a/d")]
    assert [entry for entry, _ in baseline_of(rows)] == [
        Entry("a/b", "", ("float32", "float64"), ("fail",)), Entry("a/c", "", ("float32",), ("crash",)),
    ]  # fmt: skip
    before = known(Entry("a/b", "why", ("float32",), report="https://x.example/1"))
    kept = [(entry.reason, entry.report) for entry, _ in baseline_of(map(before.seen, rows))]
    assert kept == [("why", "https://x.example/1"), ("", ""), ("", "")]


def test_what_is_wrong_is_told_with_the_file_that_it_stands_in(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text('baseline_version = 1\n[[known]]\ncase = "a/misspelt"\nreason = "w"\n')
    (problem,) = read_baseline(path).problems((), HELD, ())
    assert problem.startswith(f"{path}: ")


def test_a_line_of_as_many_dots_as_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    for dots, refused in ((MOST_DOTS, False), (MOST_DOTS + 1, True)):
        path.write_text(f'baseline_version = 1\n[[known]]\ncase = "a/b"\nreason = "{"." * dots}"\n')
        with pytest.raises(UsageError, match="more than 200 dots") if refused else nullcontext():
            assert read_baseline(path).entries == (Entry("a/b", "." * dots),)
