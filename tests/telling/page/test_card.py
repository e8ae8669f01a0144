"""The card to share: what it says, that it stays on its ground, and what is refused."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.cli import main
from conformance.judging.verdict import Diagnosis
from conformance.telling.page.card import SHOWN, card
from conformance.telling.recorder import text

HOSTILE = (
    "<script>alert(1)</script>",
    '" onload=alert(1) x="',
    "]]>&#0;",
    "\x00\x1b[2J\u202eevil\ud800\ufeff",
    "{0}{margin}",
)
SVG = "{http://www.w3.org/2000/svg}"


def read(drawn: str) -> tuple[list[str], list[ElementTree.Element]]:
    """The texts and the rectangles of a card."""
    root = ElementTree.fromstring(drawn)
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")], list(root.iter(f"{SVG}rect"))


def test_one_run_has_its_headline_its_cause_and_its_link(make_report: Any, make_row: Any) -> None:
    found = (Diagnosis("scale-by-d-k-itself", 1, 1),)
    report = make_report(make_row("fail", diagnosis=found), make_row(case="a/c"), name="mine")
    words, bars = read(card([report], "https://example.org/a?b=1&c=2"))
    assert "mine is wrong" in words
    assert any(line.startswith("Your logits are divided by d_k, not by its square root.") for line in words)
    assert "1 pass · 1 fail" in words
    assert any("https://example.org/a?b=1&c=2" in line for line in words)
    passed, failed = (bar for bar in bars if bar.get("height") == "56" and bar.get("rx") is None)
    assert passed.get("width") == failed.get("width") == "536.0"


def test_many_runs_are_ranked_and_the_rest_is_counted(make_report: Any, make_row: Any) -> None:
    reports = [make_report(make_row("fail"), make_row(case="a/c"), name="half")]
    reports += [make_report(make_row(), name=f"whole {n}") for n in range(SHOWN)]
    words, _ = read(card(reports))
    assert f"{SHOWN + 1} implementations, by share of tests that pass" in words
    assert words.index("whole 0") < words.index("100 %")
    assert "half" not in words
    assert "and 1 more" in words


@pytest.mark.parametrize("word", HOSTILE)
def test_a_hostile_name_is_text(make_report: Any, make_row: Any, word: str) -> None:
    for reports in ([make_report(make_row("fail"), name=word)], [make_report(make_row(), name=word)] * 2):
        root = ElementTree.fromstring(card(reports))
        assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {"svg", "style", "rect", "text"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--card", "card.png"], "--card 'card.png' has an unknown ending: the card is SVG"),
        (["--link", "https://example.org"], "--link is part of a card: give --card OUT.svg too"),
        (["--card", "card.svg", "--link", "javascript:alert(1)"], "is not an address"),
        (["--card", "mine.json"], "has an unknown ending"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str],
    message: str, make_report: Any, make_row: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(text(make_report(make_row())), "utf-8")
    assert main(["report", "mine.json", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
    assert main(["report", "mine.json", "--card", "card.svg"]) == 0
    assert "wrote card card.svg" in capsys.readouterr().out
