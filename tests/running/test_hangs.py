"""A target that hangs costs a few timeouts, not one for each case; and that is told everywhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from conformance.resources import schema
from conformance.running import hangs, subprocess_target
from conformance.running.baseline import Baseline, Entry
from conformance.running.events import GaveUp
from conformance.running.hangs import Hangs
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.running.session import Session
from conformance.telling.merge_shards import join
from conformance.telling.report import read_report
from conformance.vectors import load
from conformance.vectors.case import Case

Make = Callable[..., Case]
Called = Callable[..., tuple[int, str, str]]
TARGET = """
import pathlib, time
import numpy as np
CALLS = pathlib.Path(__file__).with_name("calls")

def good(query, key, value):
    with CALLS.open("a") as file:
        file.write("x")
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(logits)
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def hanging(query, key, value):
    good(query, key, value)
    time.sleep(60)

def second(query, key, value):
    if len(CALLS.read_text() if CALLS.exists() else "") % 2:
        hanging(query, key, value)
    return good(query, key, value)
"""
CASES, LATE = 8, {"timeout": 0.3, "fresh": None}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(subprocess_target, "FIRST_CASE_SECONDS", 0.0)
    monkeypatch.setattr(hangs, "MOST", 2)
    path = tmp_path / "target.py"
    path.write_text(TARGET)
    return path


@pytest.fixture
def cases(make_case: Make, make_vectors: Any, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    made = [make_case(f"a/{n}") for n in range(CASES)]
    made.append(make_case("z/scaled", features=("scale",), options={"scale": 1.0}, covers=("ATT-4",)))
    monkeypatch.setattr(load, "load_vectors", lambda directory=None: make_vectors(*made))
    return made


def asked(target: Path) -> int:
    return len((target.parent / "calls").read_text())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_target_that_hangs_is_given_up(target: Path, cases: list[Case], workers: int) -> None:
    request = Request(target=f"{target}:hanging", workers=workers, **LATE)  # type: ignore[arg-type]
    _, *rows, last = run(request, cases)
    assert [row.verdict for row in rows] == ["timeout"] * 2 * workers + ["unsupported"]  # type: ignore[union-attr]
    assert last == GaveUp(f"{2 * workers} tests in a row timed out", CASES - 2 * workers)
    assert asked(target) <= 3 * workers


def test_one_that_answers_in_between_is_asked_on(target: Path, cases: list[Case]) -> None:
    _, *rows = run(Request(target=f"{target}:second", **LATE), cases)  # type: ignore[arg-type]
    assert len(rows) == CASES + 1
    assert {row.verdict for row in rows} == {"pass", "timeout", "unsupported"}  # type: ignore[union-attr]


def test_hangs_that_are_known_do_not_count(target: Path, cases: list[Case]) -> None:
    known = Baseline("k.toml", tuple(Entry(f"a/{n}", "slow") for n in range(CASES - 1)))
    _, *rows = run(Request(target=f"{target}:hanging", baseline=known, **LATE), cases)  # type: ignore[arg-type]
    verdicts = [row.verdict for row in rows]  # type: ignore[union-attr]
    assert verdicts == ["xfail"] * (CASES - 1) + ["timeout", "unsupported"]


def test_the_last_rows_are_no_reason_to_give_up(target: Path, cases: list[Case]) -> None:
    _, *rows = run(Request(target=f"{target}:hanging", **LATE), cases[:2])  # type: ignore[arg-type]
    assert [row.verdict for row in rows] == ["timeout"] * 2  # type: ignore[union-attr]


@pytest.mark.covers("CONF-6", "CONF-8", "CONF-17")
def test_it_is_told_everywhere(command: Called, target: Path, cases: list[Case], tmp_path: Path) -> None:
    path, html, summary = tmp_path / "r.json", tmp_path / "r.html", "0 pass, 0 fail, 2 timeout, 1 unsupported"
    call = ("run", f"{target}:hanging", "--timeout", "0.3", "--fresh", "off")
    status, out, _ = command(*call, "--report", path, "--html", html)
    told = f"2 tests in a row timed out, so {CASES - 2} of {CASES + 1} were not run"
    assert status == 1
    assert f"gave up: {told}; fix what hangs, or raise --timeout" in out.splitlines()
    assert out.splitlines()[-1] == f"non-conformant: {summary}, {CASES - 2} not run"
    data = json.loads(path.read_text())
    Draft202012Validator(schema("report")).validate(data)
    assert (data["status"], data["asked"], len(data["results"])) == ("non-conformant", CASES + 1, 3)
    assert data["stopped"] == "2 tests in a row timed out"
    assert read_report(path).to_json() == data
    assert told in html.read_text()
    assert told in command("report", path)[1]
    assert command(*call, "-q")[1] == f"non-conformant: {summary}, {CASES - 2} not run\n"
    assert told in command("diagnose", *call[1:-2])[1]
    target.write_text(TARGET.replace("time.sleep(60)", "return good(query, key, value)"))
    status, out, _ = command(*call, "--resume", path)
    assert (status, "gave up" in out) == (1, False)
    assert out.splitlines()[-1] == f"non-conformant: {CASES - 2} pass, 0 fail, 2 timeout, 1 unsupported"
    assert "stopped" not in json.loads(path.read_text())


def test_a_part_that_gave_up_leaves_the_whole_open(
    command: Called, target: Path, cases: list[Case], tmp_path: Path
) -> None:
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for part, path in enumerate(paths, 1):
        call = ("run", f"{target}:hanging", "--timeout", "0.3", "--fresh", "off", "--shard", f"{part}/2")
        assert command(*call, "--report", path)[0] == 1
    (whole,) = join([read_report(path) for path in paths]).reports
    assert (whole.status, whole.stopped) == ("non-conformant", "2 tests in a row timed out")
    assert whole.lacking == CASES + 1 - len(whole.results) > 0


def test_a_session_asks_no_further(target: Path, cases: list[Case]) -> None:
    session = Session(Request(target=f"{target}:hanging", selection=Selection(), **LATE), cases)  # type: ignore[arg-type]
    rows = [session.row(question) for question in session.questions]
    session.close()
    assert [row.verdict for row in rows] == ["timeout"] * CASES + ["unsupported"]
    assert [row.message for row in rows[2:-1]] == ["not run: 2 tests in a row timed out"] * (CASES - 2)
    assert len(session.rows) == CASES + 1


def test_what_counts(make_case: Make) -> None:
    assert hangs.MOST > 4  # the dtypes of one case that takes too long
    assert Hangs(3).too_many is False
