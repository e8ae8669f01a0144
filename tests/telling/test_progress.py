"""While a test hangs, a run says which one, and since when."""

import io
import re
import time

import pytest
from rich.console import Console

from conformance.running.events import Noticed, Started
from conformance.running.messages import Hello, Question
from conformance.telling.progress import RunProgress
from conformance.vectors.load import load_vectors

CASE = load_vectors().cases[0]
STARTED = Started(Hello("mine", "1", (), (), (), "eager"), "x", "eager", 2)


def said(quiet: bool, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("conformance.telling.progress.SLOW_TEST", seconds)
    out = io.StringIO()
    with RunProgress(Console(file=out, width=200, markup=False), quiet) as progress:
        progress.show(STARTED)
        progress.asking(Question(CASE, "float32"))
        time.sleep(0.5)
    return out.getvalue().splitlines()[0 if quiet else 1 :]


def test_a_test_that_hangs_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said(False, 0.05, monkeypatch)
    assert len(lines) == 1
    words = rf"{re.escape(CASE.id)} float32 has been running since \d\d:\d\d:\d\d; --timeout limits it"
    assert re.fullmatch(words, lines[0])


def test_nothing_is_said_of_one_that_does_not_or_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(False, 60.0, monkeypatch) == []
    assert said(True, 0.05, monkeypatch) == []


@pytest.mark.parametrize("quiet", [False, True])
def test_what_was_noticed_is_said_at_once(quiet: bool) -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=200, markup=False), quiet) as progress:
        progress.show(Noticed("it is so"))
        assert out.getvalue() == ("" if quiet else "by experiment it is so\n")
