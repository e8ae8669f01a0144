"""The bench: statistics by hand, references against the core, and the command on tiny sizes. Nothing is timed."""

import json
import math
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mha_core
from conformance.benching import timing
from conformance.benching.memory import extra_memory
from conformance.benching.problem import problem_of
from conformance.benching.references import Naive, Products
from conformance.benching.request import Request
from conformance.benching.rivals import OtherResultError, check_agreement, outputs_of, rival, target_of
from conformance.benching.timing import Sample, measured, ratios, spread
from conformance.cli import main
from conformance.errors import UsageError
from conformance.names import DENSE as OPERATIONS
from conformance.running.target import adopt
from conformance.telling.bench import bench_lines, bench_svg

TINY = ["--shape", "2,4,3,5", "--rounds", "3", "--no-memory"]


def test_quartiles() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)
    assert spread([2.0, 1.0]) == (1.25, 1.5, 1.75)
    assert spread([7.0]) == (7.0, 7.0, 7.0)


def test_ratios_are_paired() -> None:
    assert ratios([1.0, 20.0, 3.0], [2.0, 40.0, 6.0]) == (0.5, 0.5, 0.5)
    assert ratios([1.0], [0.0]) is None


def test_rounds_are_shuffled_and_short_calls_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "process_time", lambda: now[0] / 2)

    def taking(name: str, seconds: float) -> Any:
        def run() -> None:
            now[0] += seconds
            seen.append(name)

        return run

    samples, calls = measured(
        {"long": taking("long", 0.25), "short": taking("short", 2**-9)}, 20, random.Random(3)
    )
    assert calls == {"long": 1, "short": 8}
    assert samples == {"long": [Sample(0.125, 0.25)] * 20, "short": [Sample(2**-10, 2**-9)] * 20}
    rounds = seen[-20 * 9 :]
    firsts = [rounds[i] for i in range(0, len(rounds), 9)]
    assert set(firsts) == {"long", "short"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_len", [None, 9])
@pytest.mark.parametrize("operation", [name for name in OPERATIONS if hasattr(Naive, name)])
def test_the_naive_reference_is_attention(operation: str, kv_len: int | None, causal: bool) -> None:
    request = Request(("x",), operation, "float64", (2, 4, 5, 3), kv_len, is_causal=causal)
    problem = problem_of(request)
    got = getattr(Naive, operation)(**problem.inputs, **problem.options)
    wanted = getattr(mha_core, operation)(**problem.inputs, **problem.options)
    for name in wanted if isinstance(wanted, dict) else ("output",):
        x, y = (r[name] if isinstance(r, dict) else r for r in (got, wanted))
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


def test_the_products_are_both_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Products, "ROWS", 2)
    monkeypatch.setattr(Products, "COLUMNS", 3)
    q, k, v = problem_of(Request(("x",), dtype="float64", shape=(2, 4, 5, 3), kv_len=7)).inputs.values()
    got = Products.scaled_dot_product_attention(q, k, v)
    np.testing.assert_allclose(got, q @ k.swapaxes(-1, -2) @ v)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_grouped_heads_and_every_operation(operation: str) -> None:
    problem = problem_of(Request(("numpy",), operation, "float32", (2, 4, 5, 3), kv_heads=2))
    target = target_of("numpy", operation, "float32")
    assert outputs_of("numpy", target, problem)
    assert rival("numpy", target, problem).run() is not None


class LengthBeforeHeads:
    layout = "blhd"

    @staticmethod
    def scaled_dot_product_attention(query: Any, key: Any, value: Any) -> Any:
        assert query.shape == (2, 3, 4, 5)
        return query


def test_the_other_layout_gets_its_own_arrays() -> None:
    problem = problem_of(Request(("x",), shape=(2, 4, 3, 5)))
    assert rival("x", adopt(LengthBeforeHeads, "x"), problem).run().shape == (2, 3, 4, 5)


def test_disagreement_is_refused_and_nan_never_agrees() -> None:
    one = {"output": np.ones((1, 2, 3, 4), np.float32)}
    check_agreement("x", one, {"output": one["output"] * np.float32(1.00001)}, "float32")
    for other in (one["output"] * 2, one["output"] * math.nan, one["output"][..., :1]):
        with pytest.raises(OtherResultError, match=r"^x"):
            check_agreement("x", {"output": other}, one, "float32")
    with pytest.raises(OtherResultError, match="answers with weights"):
        check_agreement("x", {"weights": one["output"]}, one, "float32")
    check_agreement("products-numpy", {"output": one["output"] * 2}, one, "float32")


def test_what_cannot_be_timed() -> None:
    with pytest.raises(UsageError, match="has no multi_head_attention"):
        target_of("products-numpy", "multi_head_attention", "float32")
    with pytest.raises(UsageError, match="does not support bfloat16"):
        target_of("naive-numpy", OPERATIONS[0], "bfloat16")
    target = target_of("products-numpy", OPERATIONS[0], "float32")
    with pytest.raises(UsageError, match="products-numpy cannot be timed on this"):
        outputs_of("products-numpy", target, problem_of(Request(("x",), shape=(1, 1, 3, 2), is_causal=True)))


def test_memory_is_what_a_call_takes() -> None:
    extra = extra_memory(lambda: np.ones(2**23), lambda: np.ones(8))  # 64 MiB
    assert extra is None or 60 * 2**20 < extra < 80 * 2**20


def bench(*arguments: str) -> int:
    return main(["bench", *arguments])


def test_the_command_measures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    sized = ["--shape", "1,2,3,5", "--rounds", "3", "--lengths", "4,2", "--causal"]
    assert bench("numpy", "--against", "naive-numpy", *sized, "--json", str(out), "--plot", str(plot)) == 0
    shown = capfd.readouterr().out
    assert "naive-numpy" in shown
    assert "3 rounds are few" in shown
    result = json.loads(out.read_text())
    assert result["bench_version"] == 1
    assert result["request"]["targets"] == ["numpy", "naive-numpy"]
    assert [size["shape"] for size in result["sizes"]] == [[1, 2, 2, 5], [1, 2, 4, 5]]
    assert set(result["machine"]["threads"].values()) == {"1"}
    for size in result["sizes"]:
        assert len(size["load"]) == 2
        for row in size["rivals"]:
            assert len(row["cpu"]) == len(row["wall"]) == 3
            assert row["extra_memory"] is None or row["extra_memory"] >= 0
            assert row["calls"] >= 1
    assert result["sizes"][0]["rivals"][0]["wall_ratio"] == [1, 1, 1]
    tree = ElementTree.fromstring(plot.read_text())
    lines = [node for node in tree.iter() if node.tag.endswith("polyline")]
    assert len(lines) == 4


def test_a_rival_that_computes_something_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.py"
    other.write_text("def attention(query, key, value):\n    print('noise')\n    return 2 * query\n")
    assert bench("numpy", "--against", str(other) + ":attention", *TINY) == 1
    captured = capfd.readouterr()
    assert "computes something else" in captured.err
    assert "noise" not in captured.out


def test_nothing_is_written_over_a_target_or_another_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine, out = tmp_path / "mine.py", tmp_path / "out"
    mine.write_text("def attention(query, key, value): ...")
    for target in (["numpy", "--against", f"{mine}:attention"], [f"{mine}:attention"]):
        assert bench(*target, *TINY, "--json", str(mine)) == 2
        assert f"result '{mine}' is the target as well, which would be lost" in capfd.readouterr().err
    assert bench("numpy", *TINY, "--lengths", "2,4", "--json", str(out), "--plot", str(out)) == 2
    assert f"plot '{out}' is the result as well" in capfd.readouterr().err
    assert not out.exists()


WRONG = {
    "a size of three numbers": (["--shape", "1,2,3"], "needs 4"),
    "a size of words": (["--shape", "a,b"], "numbers of at least 1"),
    "a length of nothing": (["--lengths", "0"], "numbers of at least 1"),
    "an unknown operation": (["--op", "attend"], "attend"),
    "an unknown dtype": (["--dtype", "float12"], "float12"),
    "no lengths to plot over": (["--plot", "x.svg"], "--lengths"),
    "heads that do not divide": (["--kv-heads", "3", "--shape", "1,4,2,2"], "HEAD-3"),
    "the target twice": (["--against", "numpy"], "twice"),
    "no such rival": (["--against", "nnumpy"], "nnumpy"),
    "a file that cannot be written": (["--json", "/nowhere/x.json"], "/nowhere/x.json"),
    "no rounds": (["--rounds", "0"], "--rounds"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_are_one_line(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments, said = WRONG[what]
    sized = [] if "--shape" in arguments else ["--shape", "1,2,3,4"]
    assert bench("numpy", *sized, "--rounds", "1", "--no-memory", *arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert said in captured.err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--help") == 0
    assert "mha-conformance bench numpy --against" in capsys.readouterr().out


def test_a_busy_machine_is_told_and_missing_memory_is_no_point() -> None:
    row = {
        "source": "a<b",
        "cpu_quartiles": (1, 2, 3),
        "cpu_ratio": None,
        "wall_ratio": None,
        "extra_memory": None,
    }
    size = {"shape": [1, 1, 8, 1], "kv_len": 8, "load": [9.0, None], "rivals": [row]}
    result = {
        "request": {
            "targets": ["a<b"],
            "rounds": 15,
            "operation": "x",
            "is_causal": False,
            "dtype": "float32",
        },
        "machine": {"processor": "p", "cores": 2, "threads": {}},
        "sizes": [size],
    }
    assert any("load was 9.0 on 2 cores" in line for line in bench_lines(result))
    ElementTree.fromstring(bench_svg(result))
