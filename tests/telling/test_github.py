"""Markdown for the summary of a step on GitHub."""

from collections.abc import Callable
from typing import Any

from conformance.telling.github import run_markdown
from conformance.telling.report import Report


def test_a_run_is_told_with_its_diagnosis(
    make_report: Callable[..., Report], make_row: Callable[..., Any]
) -> None:
    text = run_markdown(make_report(make_row("fail")), diagnosis=["diagnosis: The scale is *wrong*."])
    assert "\n\n**Diagnosis:** The scale is &#42;wrong&#42;.\n\n|" in text
