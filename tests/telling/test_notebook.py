"""A report where it is looked at from Python: one line, and a fragment of a page in a notebook."""

from dataclasses import replace
from typing import Any

import numpy as np

import conformance
from conformance.telling.table import apart


def wrong(query: Any, key: Any, value: Any) -> Any:
    """A function whose name is markup."""
    weights = np.exp(query @ key.swapaxes(-1, -2) / query.shape[-1])
    return weights / weights.sum(-1, keepdims=True) @ value


wrong.name = "<b>mine</b>"  # type: ignore[attr-defined]
wrong.features = ()  # type: ignore[attr-defined]


def test_a_report_that_fails() -> None:
    report = conformance.run(wrong, k="attention or example", fresh="off")
    assert repr(report).startswith("<Report of wrong: non-conformant: ")
    assert len(repr(report)) < 120
    shown = report._repr_html_()
    assert "&lt;b&gt;mine&lt;/b&gt;" in shown
    assert "Your logits are divided by d_k, not by its square root." in shown
    assert shown.count("<tr>") == 1 + 8
    assert "more failure" in shown


def test_a_report_that_passes() -> None:
    def right(query: Any, key: Any, value: Any) -> Any:
        logits = query.astype("f8") @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ value).astype(query.dtype)

    right.features = ()  # type: ignore[attr-defined]
    report = conformance.run(right, k="attention/plain", fresh="off")
    assert repr(report) == "<Report of " + report.target.source + ": incomplete: 1 pass>"
    assert "<table>" not in report._repr_html_()


def test_public_names() -> None:
    assert dir(conformance) == sorted(conformance.__all__)


def test_targets_of_one_name_are_told_apart() -> None:
    one = conformance.run(wrong, k="attention/plain", fresh="off", no_diagnose=True)
    other = replace(one, target=replace(one.target, source="b.py:wrong"))
    third = replace(one, target=replace(one.target, name="third"))
    assert apart([one, other, third]) == ["wrong", "b.py:wrong", "third"]
    assert apart([one, third]) == ["<b>mine</b>", "third"]
