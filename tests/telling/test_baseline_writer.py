"""Baselines as they are written: what is read back is what failed, whatever the texts hold."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.running.baseline import Baseline, Entry, read_baseline
from conformance.running.request import Request
from conformance.telling.baseline_writer import baseline_text

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=TEXT, message=TEXT, reason=TEXT)
def test_there_and_back(
    tmp_path: Path, make_report: Any, make_row: Any, case: str, message: str, reason: str
) -> None:
    path = tmp_path / "known.toml"
    known = Request(
        target="x.py", baseline=Baseline("k", (Entry(case, reason, report="https://x.example/1"),))
    )
    rows = [make_row("fail", case, message=message), make_row("crash", "a/b c", "float64", message=message)]
    path.write_text(baseline_text(make_report(*rows, request=known)), encoding="utf-8")
    assert sorted(read_baseline(path).entries, key=lambda entry: entry.case == case) == [
        Entry("a/b c", reason if case == "a/b c" else "", ("float64",), ("crash",), ""),
        Entry(case, reason, ("float32",), ("fail",), "https://x.example/1"),
    ]


@pytest.mark.covers("CONF-15")
def test_reasons_are_left_to_whoever_reads_it(tmp_path: Path, make_report: Any, make_row: Any) -> None:
    path = tmp_path / "known.toml"
    path.write_text(baseline_text(make_report(make_row("fail", message="off\nby one"))))
    assert "# off\\nby one\n" in path.read_text()
    (problem,) = (p for p in read_baseline(path).problems([], {"a/b": ("float32",)}, []) if "reason" in p)
    assert problem.endswith("its reason is empty; say why it is known to fail (CONF-15)")


def test_nothing_failed(tmp_path: Path, make_report: Any, make_row: Any) -> None:
    path = tmp_path / "known.toml"
    path.write_text(baseline_text(make_report(make_row())))
    assert read_baseline(path).entries == ()
