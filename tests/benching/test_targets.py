"""The table of targets: figures by hand from a bench's own form, and every bench that it names exists."""

import json
import math
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # a program, whose neighbours are not a package

import targets

BENCHES = Path(__file__).with_name("benches.toml")
PAGE = Path(__file__).parents[2] / "spec" / "bench.md"


@pytest.fixture
def program() -> ModuleType:
    return targets


def result(*sizes: tuple[int, dict[str, list[float]]], extra: int | None = None) -> dict[str, Any]:
    return {
        "machine": {"processor": "p", "cores": 2, "python": "3", "numpy": "2"},
        "sizes": [
            {
                "shape": [1, 1, length, 8],
                "load": [0.5, 1.5],
                "rivals": [
                    {"source": source, "cpu": cpu, "extra_memory": extra} for source, cpu in rows.items()
                ],
            }
            for length, rows in sizes
        ],
    }


def test_ratios_are_paired_within_a_bench_and_of_medians_between_two(program: ModuleType) -> None:
    one = result((8, {"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0], "c": [4.0, 4.0, 4.0]}))
    other = result((8, {"a": [2.0, 2.0, 20.0]}))
    results = {"one": one, "other": other}
    ask = {"figure": "ratio", "bench": "one", "over": "b"}
    assert program.reached(ask, results) == 2.0
    assert program.reached({**ask, "of": "c"}, results) == 2.0
    assert program.reached({**ask, "over": "a", "over_bench": "other"}, results) == 2.0
    assert program.reached(ask, {"other": other}) is None
    assert program.reached({**ask, "over_bench": "third"}, results) is None


def test_growth_is_an_exponent_and_memory_is_in_mebibytes(program: ModuleType) -> None:
    sizes = [
        (length, {"a": [2.0 * length**3, float(length) ** 3], "b": [1.0]}) for length in (1024, 2048, 4096)
    ]
    results = {"long": result(*sizes, extra=3 * 2**20)}
    assert program.reached({"figure": "growth", "bench": "long"}, results) == pytest.approx(3.0)
    assert program.reached({"figure": "growth", "bench": "long", "of": "b"}, results) == 0.0
    assert program.reached({"figure": "memory", "bench": "long"}, results) == 3.0


@pytest.mark.parametrize(
    ("figure", "said"), [(1.0, "aim"), (1.5, "met"), (2.0, "met"), (2.01, "missed"), (None, "not measured")]
)
def test_verdicts(program: ModuleType, figure: float | None, said: str) -> None:
    assert program.verdict({"aim": 1.0, "at_least": 2.0}, figure) == said
    assert program.verdict({"aim": 0.5}, 1.0) == "missed"


def test_every_target_is_of_a_bench_that_times_what_it_names(program: ModuleType) -> None:
    said = tomllib.loads(BENCHES.read_text("utf-8"))
    benches = {name: words.split() for name, words in said["benches"].items()}
    commands = {"commands": set(said["commands"])}
    commands["compiled"] = {
        f"{call}, {state}" for call in said["compiled"].values() for state in ("cold", "warm")
    }
    for target in program.targets():
        assert target["aim"] < target.get("at_least", math.inf)
        if target["figure"] == "import":
            continue
        if target["figure"] == "seconds":
            assert target["of"] in commands[target["bench"]]
            continue
        assert target.get("of", benches[target["bench"]][0]) in benches[target["bench"]]
        assert target.get("over", target.get("of")) in (
            None,
            *benches[target.get("over_bench", target["bench"])],
        )


def test_the_command(program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decode = result((1, {"torch-portable": [1.2], "torch": [1.0], "torch-sdpa-flash": [1.0]}))
    (tmp_path / "decode.json").write_text(json.dumps(decode), "utf-8")
    (tmp_path / "long.json").touch()  # interrupted
    assert program.main([str(tmp_path), "decode"]) == 0
    shown = capsys.readouterr().out
    assert "| 1.25 | 1.1 | 1.2 | met |" in shown
    assert "p, 2 cores" in shown
    assert "load 0.5 to 1.5" in shown
    assert program.main([str(tmp_path), "long"]) == 2
    assert program.main([]) == 2


def test_the_import_costs_something(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "IMPORT_ROUNDS", 1)
    assert 0 < program.import_cost() < 5000


def test_the_table_replaces_what_stands_between_the_marks(program: ModuleType) -> None:
    start, end = program.MARKS
    page = f"one\n{start}old\n{end}\ntwo\n"
    new = program.written(page, "| new |")
    assert new == f"one\n{start}| new |\n{end}\ntwo\n"
    assert program.written(new, "| new |") == new


def test_a_command_is_measured_by_the_median_of_its_seconds(program: ModuleType) -> None:
    results = {"commands": {"machine": {}, "load": [1.0, 2.0], "commands": {"list cases": [0.3, 0.1, 0.2]}}}
    ask = {"figure": "seconds", "bench": "commands", "of": "list cases"}
    assert program.reached(ask, results) == 0.2
    assert program.reached({**ask, "of": "list profiles"}, results) is None
    assert program.reached(ask, {}) is None


def test_the_page_has_every_target_and_a_reason_for_every_one_that_is_missed(program: ModuleType) -> None:
    page = PAGE.read_text("utf-8")
    table = page.partition(program.MARKS[0])[2].partition(program.MARKS[1])[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line.startswith("| ")]
    assert [row[0] for row in rows] == [target["name"] for target in program.targets()]
    for name, *_, said in rows:
        verdict, _, why = said.partition(": ")
        assert verdict in ("aim", "met", "missed", "not measured"), name
        assert (verdict == "missed") == bool(why), name
        assert why != program.NO_REASON, name


def test_a_missed_target_without_a_reason_says_so(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"name": "n", "bench": "b", "figure": "ratio", "over": "y", "at_least": 2.0, "aim": 1.0}
    results = {"b": result((8, {"x": [3.0], "y": [1.0]}))}
    monkeypatch.setattr(program, "targets", lambda: [one])
    assert program.NO_REASON in program.table(results)
    monkeypatch.setattr(program, "targets", lambda: [{**one, "why": "it is slow"}])
    assert program.table(results).endswith("| missed: it is slow |")


def test_every_target_has_a_reason_to_be_missed_and_a_name_of_its_own(program: ModuleType) -> None:
    declared = program.targets()
    assert [target["name"] for target in declared if not target.get("why")] == []
    assert len({target["name"] for target in declared}) == len(declared)
