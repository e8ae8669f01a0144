"""Badges: the form that shields.io reads, and no more than the report says."""

import json
from typing import Any

import pytest

from conformance.running.baseline import Baseline, Entry
from conformance.running.runner import Request
from conformance.telling.badge import badge


def read(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    assert set(loaded) == {"schemaVersion", "label", "message", "color"}
    assert loaded["schemaVersion"] == 1
    return loaded


@pytest.mark.covers("CONF-11", "CONF-14")
def test_what_it_claims(make_report: Any, make_row: Any) -> None:
    made = read(badge(make_report(make_row())))
    assert made["color"] == "brightgreen"
    assert made["message"] == "conformant: spec 1.0; profile core; float32; eager"
    failed = read(badge(make_report(make_row("fail"))))
    assert (failed["color"], failed["message"]) == ("red", "non-conformant: spec 1.0; float32; eager")
    known = Request(target="x.py", baseline=Baseline("k", (Entry("a/b", "why"),)))
    assert read(badge(make_report(make_row("fail"), request=known))) == failed, "a baseline hides nothing"


def test_of_a_profile(make_report: Any, make_row: Any) -> None:
    made = read(badge(make_report(make_row()), "decoder"))
    assert (made["color"], made["message"]) == (
        "yellow",
        "incomplete: spec 1.0; profile decoder; float32; eager",
    )
