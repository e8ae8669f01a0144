"""The table of targets: figures by hand from a bench's own form, and every bench that it names exists."""

import ast
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("targets", Path(__file__).with_name("targets.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BENCHES"
    )
    assert isinstance(value, ast.Dict)
    benches = {}
    for key, words in zip(value.keys, value.values, strict=True):
        assert key is not None
        assert isinstance(words, ast.List)
        benches[ast.literal_eval(key)] = [word.value for word in words.elts if isinstance(word, ast.Constant)]
    for target in program.targets():
        if target["figure"] == "import":
            continue
        assert target.get("of", benches[target["bench"]][0]) in benches[target["bench"]]
        assert target.get("over", target.get("of")) in (
            None,
            *benches[target.get("over_bench", target["bench"])],
        )
        assert target["aim"] < target["at_least"]


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
