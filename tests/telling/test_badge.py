"""Badges: a picture, the form that shields.io reads, and no more than the report says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.baseline import Baseline, Entry
from conformance.running.messages import Hello
from conformance.running.request import Request
from conformance.running.select import Selection
from conformance.telling.badge import Badge, badge, badge_of, badge_writer, check_ending, picture
from conformance.telling.report import BaselineResult, Report

SVG = "{http://www.w3.org/2000/svg}"
KNOWN = Baseline("k", (Entry("a/b", "why"),))


def read(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    assert set(loaded) == {"schemaVersion", "label", "message", "color"}
    assert loaded["schemaVersion"] == 1
    return loaded


def known(**selection: Any) -> Request:
    return Request(target="x.py", fresh=7, baseline=KNOWN, selection=Selection(**selection))


def sound(report: Report) -> Report:
    """The report, with no flaw of the baseline: these reports have no vectors that it could name."""
    return replace(report, baseline=BaselineResult("k", ()))


def says(said: Badge) -> tuple[str, str]:
    return said.message, said.colour


@pytest.mark.covers("CONF-11")
def test_what_it_claims(make_report: Any, make_row: Any) -> None:
    made = badge_of(make_report(make_row()))
    assert made == Badge(
        "attention spec 1.0",
        "core 100 %",
        "brightgreen",
        "conformant: spec 1.0; profile core; float32; eager",
    )
    failed = badge_of(make_report(make_row("fail"), make_row(case="a/c")))
    assert (says(failed), failed.claim) == (("1/2", "red"), "non-conformant: spec 1.0; float32; eager")
    narrowed = make_report(make_row(), request=Request(target="x.py", selection=Selection(expression="a")))
    assert says(badge_of(narrowed)) == ("1/1 incomplete", "yellow")


@pytest.mark.covers("CONF-14")
def test_failures_that_a_baseline_explains_are_counted_and_not_red(make_report: Any, make_row: Any) -> None:
    rows = make_row("fail"), make_row(case="a/c")
    made = badge_of(sound(make_report(*rows, request=known())))
    assert says(made) == ("conformant but for 1 known", "yellowgreen")
    assert made.claim == "non-conformant: spec 1.0; float32; eager", "no profile is claimed"
    assert says(badge_of(sound(make_report(*rows, request=known())), "core")) == (
        "core but for 1 known",
        "yellowgreen",
    )


@pytest.mark.covers("CONF-14")
def test_what_a_baseline_does_not_explain_stays_red(make_report: Any, make_row: Any) -> None:
    row, right, unsupported = make_row("fail"), make_row(case="a/c"), make_row("unsupported", case="a/c")

    def made(
        *rows: Row, profile: str | None = None, asked: int | None = None, **selection: Any
    ) -> tuple[str, str]:
        report = sound(make_report(*rows, request=known(**selection)))
        return says(badge_of(replace(report, asked=asked or report.asked), profile))

    assert made(row, right) == ("conformant but for 1 known", "yellowgreen"), "else the rest shows nothing"
    assert made(row, make_row("fail", case="a/c")) == ("0/2", "red"), "one is not known"
    assert made(row, right, expression="a") == made(row, right, shard=(1, 2)) == ("1/2", "red"), (
        "a part was run"
    )
    assert made(row, unsupported) == ("0/1", "red"), "it is claimed and was not shown"
    assert made(row, right, asked=3) == ("1/2", "red"), "the run was cut short"
    assert made(row, right, profile="decoder") == ("decoder 1/2", "red"), "its features are not claimed"
    assert made(row, right, profile="training") == ("training 1/2", "red"), "no gradient is claimed"
    flawed = replace(make_report(row, right, request=known()), baseline=BaselineResult("k", ("no reason",)))
    assert says(badge_of(flawed)) == ("1/2", "red"), "the baseline is not in order"


def test_a_pass_against_the_baseline_is_a_pass(make_report: Any, make_row: Any) -> None:
    assert says(badge_of(make_report(make_row(), request=known()))) == ("core 100 %", "brightgreen")


def test_of_a_profile(make_report: Any, make_row: Any) -> None:
    made = badge_of(make_report(make_row()), "decoder")
    assert says(made) == ("decoder 1/1 incomplete", "yellow")
    assert made.claim == "incomplete: spec 1.0; profile decoder; float32; eager"
    features = ("is_causal", "q_offset", "gqa", "cache")
    whole = make_report(make_row(), hello=Hello("x", "1", ("float32",), features, (SDPA,), "eager"))
    assert says(badge_of(whole, "decoder")) == ("decoder 100 %", "brightgreen")
    assert says(badge_of(whole)) == ("decoder 100 %", "brightgreen"), "the core is part of it"


def test_the_endpoint_form(make_report: Any, make_row: Any) -> None:
    made = read(badge(make_report(make_row())))
    assert (made["label"], made["message"], made["color"]) == (
        "attention spec 1.0",
        "core 100 %",
        "brightgreen",
    )


def test_the_picture_needs_nothing_else(make_report: Any, make_row: Any) -> None:
    text = picture(make_report(make_row("fail"), request=known()))
    root = ElementTree.fromstring(text)
    said = badge_of(make_report(make_row("fail"), request=known()))
    assert [each.text for each in root.iter(f"{SVG}text")] == [said.label, said.message]
    assert root.findtext(f"{SVG}title") == said.claim
    assert root.get("aria-label") == f"{said.label}: {said.message}"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    widths = [float(each.get("textLength", "0")) for each in root.iter(f"{SVG}text")]
    assert all(width > 0 for width in widths)
    assert sum(widths) + 4 * 8 == float(root.get("width", "0"))


def test_what_is_hostile_is_text(make_report: Any, make_row: Any) -> None:
    report = make_report(make_row())
    hostile = replace(
        report, spec_version="</text><script>", target=replace(report.target, accuracy="\x1b<a>&")
    )
    root = ElementTree.fromstring(picture(hostile))
    assert root.findtext(f".//{SVG}text") == "attention spec </text><script>"
    assert (root.findtext(f"{SVG}title") or "").endswith("\\x1b<a>&")


@pytest.mark.parametrize(("name", "written"), [("b.svg", picture), ("B.SVG", picture), ("b.json", badge)])
def test_the_suffix_chooses_the_form(make_report: Any, make_row: Any, name: str, written: Any) -> None:
    report = make_report(make_row())
    assert badge_writer(Path(name), "core")(report) == written(report, "core")


@pytest.mark.parametrize("name", ["x.png", "badge.txt", "badge", ".svg"])
def test_another_ending_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="has an unknown ending: give a name that ends"):
        check_ending(Path(name))


def test_the_known_endings_are_taken() -> None:
    for name in ("b.svg", "B.SVG", "b.json", "B.Json"):
        check_ending(Path(name))
