"""Comparisons: what is a regression and what is not, and that nothing disappears unseen."""

from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from conformance.judging.verdict import FAILURES
from conformance.resources import schema
from conformance.running.baseline import Baseline, Entry
from conformance.running.request import Request
from conformance.running.select import Selection
from conformance.telling.compare import KINDS, Comparison, compare
from conformance.telling.github import comparison_markdown
from conformance.telling.table import comparison_lines


def lists(comparison: Comparison) -> dict[str, list[str]]:
    return {
        n: [f"{c.row.case} {c.words}" for c in getattr(comparison, n)]
        for n in KINDS
        if getattr(comparison, n)
    }


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        *[("pass", failure, "regressions") for failure in FAILURES],
        *[("unsupported", failure, "regressions") for failure in FAILURES],
        ("pass", "unsupported", "regressions"),
        *[(failure, "pass", "fixed") for failure in FAILURES],
        ("fail", "crash", "changed"),
        ("fail", "unsupported", "changed"),
        ("unsupported", "pass", "changed"),
    ],
)
@pytest.mark.covers("CONF-18", "CONF-4")
def test_kinds(make_report: Any, make_row: Any, before: str, after: str, kind: str) -> None:
    found = compare(make_report(make_row(before)), make_report(make_row(after)))
    assert lists(found) == {kind: [f"a/b {before} -> {after}"]}
    assert found.same == 0


def test_what_is_alike_is_only_counted(make_report: Any, make_row: Any) -> None:
    for verdict in ("pass", "fail", "unsupported"):
        found = compare(make_report(make_row(verdict)), make_report(make_row(verdict, message="other words")))
        assert (lists(found), found.same, found.notes) == ({}, 1, ())


@pytest.mark.covers("CONF-18")
def test_a_pass_that_vanished_is_a_regression_unless_other_things_were_asked(
    make_report: Any, make_row: Any
) -> None:
    before = make_report(make_row(), make_row("fail", "a/c"))
    assert lists(compare(before, make_report())) == {
        "regressions": ["a/b pass -> no row"], "vanished": ["a/c fail -> no row"],
    }  # fmt: skip
    vanished = {"vanished": ["a/b pass -> no row", "a/c fail -> no row"]}
    assert lists(compare(before, make_report(vectors_sha256="1" * 64))) == vanished
    narrow = Request(target="x.py", selection=Selection(dtypes=("float64",)))
    assert lists(compare(before, make_report(request=narrow))) == vanished
    other_seed = Request(target="x.py", fresh=8)
    assert "regressions" in lists(compare(before, make_report(request=other_seed)))
    assert lists(compare(make_report(), before)) == {"new": ["a/b no row -> pass", "a/c no row -> fail"]}


def test_baselines_change_nothing(make_report: Any, make_row: Any) -> None:
    known = Request(target="x.py", fresh=7, baseline=Baseline("k", (Entry("a/b", "why"),)))
    assert compare(make_report(make_row("fail")), make_report(make_row("fail"), request=known)).same == 1
    assert lists(
        compare(make_report(make_row(), request=known), make_report(make_row("fail"), request=known))
    ) == {"regressions": ["a/b pass -> fail"]}


def test_notes(make_report: Any, make_row: Any) -> None:
    before, after = make_report(make_row()), make_report(make_row(), suite_version="9", spec_version="2.0")
    after = make_report(
        make_row(), suite_version="9", spec_version="2.0", environment={**before.environment, "torch": "3"}
    )
    assert compare(before, after).notes == (
        f"suite version: {before.suite_version} -> 9", "spec version: 1.0 -> 2.0", "torch: none -> 3",
    )  # fmt: skip


def test_two_targets_are_said_to_be_two_before_all_else(make_report: Any, make_row: Any) -> None:
    before = make_report(*(make_row("fail", f"a/{n}") for n in range(40)))
    after = make_report(*(make_row("pass", f"a/{n}") for n in range(40)), spec_version="2.0")
    other = replace(after, target=replace(after.target, name="other", version="9"))
    first, second, *_ = comparison_lines(compare(before, other))
    assert first.plain == f"note: these are two targets: A is {before.target.name}, B is other"
    assert second.plain.startswith("0 regressed, 40 fixed"), "then the counts, since it is long"
    assert not any("two targets" in note for note in compare(before, after).notes)


def test_what_it_says(make_report: Any, make_row: Any) -> None:
    before = make_report(make_row(), make_row("fail", "a/c"))
    after = make_report(
        make_row("fail", message="off |by| \x1b[2J <b>"), make_row("pass", "a/c"), spec_version="2.0"
    )
    found = compare(before, after)
    Draft202012Validator(schema("comparison")).validate(found.to_json())
    assert [line.plain for line in comparison_lines(found)] == [
        "note: spec version: 1.0 -> 2.0",
        "regressed a/b float32 (pass -> fail): off |by| \\x1b[2J <b>",
        "fixed     a/c float32 (fail -> pass)",
        "1 regressed, 1 fixed, 0 changed, 0 new, 0 vanished, 0 the same",
    ]  # fmt: skip
    markdown = comparison_markdown(found)
    assert "### 1 regressed, 1 fixed, 0 changed, 0 new, 0 vanished, 0 the same" in markdown
    row = next(line for line in markdown.splitlines() if line.startswith("| regressed"))
    assert row.count("|") == 6
    assert "<" not in row
    assert "\x1b" not in markdown


def test_a_long_comparison_begins_with_its_counts(make_report: Any, make_row: Any) -> None:
    for number, first in ((30, True), (3, False)):
        before, after = (
            make_report(*(make_row(verdict, f"a/{n:02}") for n in range(number)))
            for verdict in ("fail", "pass")
        )
        lines = [str(line) for line in comparison_lines(compare(before, after))]
        assert lines[-1] == f"0 regressed, {number} fixed, 0 changed, 0 new, 0 vanished, 0 the same"
        assert (lines[0] == lines[-1]) == first
