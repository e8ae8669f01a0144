"""What `nox -s bench` measures: the calls it makes, what it keeps, and that one failure does not end it."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # a program, whose neighbours are not a package

import bench
import commands

WHOLE = {
    "machine": {"processor": "p", "cores": 2, "python": "3", "numpy": "2"},
    "load": [0.5, 0.5],
    "commands": {"list backends": [0.1]},
}


def test_a_bench_is_a_call_of_the_command() -> None:
    folder = Path("x")
    words = ["numpy", "--against", "naive-numpy", "--shape", "1,2,2,2", "--no-memory"]
    assert bench.words("tiny", folder)[4:] == [*words, "--json", "x/tiny.json"]
    assert bench.words("long", folder)[-4:] == ["--json", "x/long.json", "--plot", "x/long.svg"]


def test_one_failure_does_not_end_it_and_what_is_whole_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measure(name: str, folder: Path) -> bool:
        asked.append(name)
        if name != "tiny":
            (folder / f"{name}.json").write_text(json.dumps(WHOLE), "utf-8")
        return name != "tiny"

    monkeypatch.setattr(bench, "measure", measure)
    names = ["tiny", "commands"]
    assert bench.main([str(tmp_path), *names]) == 1
    assert asked == names
    assert "not measured: tiny" in capsys.readouterr().err
    (tmp_path / "tiny.json").write_text("{", "utf-8")  # interrupted
    assert bench.main([str(tmp_path), *names, "--resume"]) == 1
    assert asked == [*names, "tiny"]
    assert "commands (2 of 2): kept" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["x", "tinny"], ["x", "--wrote"], []])
def test_a_call_that_is_wrong_measures_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(words) == 2
    assert capsys.readouterr().err


def test_seconds_of_a_command() -> None:
    found = commands.measured("commands", {"--version": 2})
    assert found is not None
    samples = found["commands"]["--version"]
    assert len(samples) == 2
    assert all(0 < sample < 60 for sample in samples)
    assert commands.measured("commands", {"list nothing": 1}) is None
