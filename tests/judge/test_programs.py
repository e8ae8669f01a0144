import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.problems.problem import find
from conformance.verdicts.serve import Bench
from conformance.verdicts.verdict import Verdict, judge_program, read_token
from tests.judge.beside import OURS, PAGE, function
from tests.judge.hacks import HACKS, Hack
from tests.judge.kernels import RIGHT, WRONG
from tests.judge.rules import RULES

SEED = 1
TORCH = ("library-called", "gradient-cut-off")
"""Programs in torch, whose import takes seconds: `python -m tests.judge.cheats` judges the others too."""
FEW = 6
"""Every sixth of the small programs; `python -m tests.judge.beside` judges all."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench(SEED)
    yield made
    made.close()


def judged(
    bench: Bench, folder: Path, source: str, problem: str = "plain-numpy", own: bool = False
) -> Verdict:
    path = folder / "program.py"
    path.write_text(source, "utf-8")
    return bench.judge(str(path), find(problem), own=own)


def test_there_are_as_many_as_are_told() -> None:
    assert (len(RIGHT), len(WRONG)) == (30, 60)
    assert len(HACKS) >= 40
    assert len(set(RIGHT.values()) | set(WRONG.values())) == 90
    assert len({hack.source for hack in HACKS.values()}) == len(HACKS)


@pytest.mark.parametrize("name", list(RIGHT)[::FEW])
def test_right_programs_are_accepted(name: str, bench: Bench, tmp_path: Path) -> None:
    verdict = judged(bench, tmp_path, RIGHT[name])
    assert verdict.json == {"verdict": "accepted", "score": 1.0, "reason": "", "replay": verdict.replay}
    assert read_token(verdict.replay, find("plain-numpy")) == ("all", SEED)


@pytest.mark.parametrize("name", list(WRONG)[::FEW])
def test_wrong_programs_are_rejected(name: str, bench: Bench, tmp_path: Path) -> None:
    verdict = judged(bench, tmp_path, WRONG[name])
    assert not verdict.accepted
    assert verdict.score < 1
    assert read_token(verdict.replay, find("plain-numpy"))[1] == SEED


def test_the_token_repeats_the_check_that_failed(bench: Bench, tmp_path: Path) -> None:
    verdict = judged(bench, tmp_path, WRONG["tile-overlap-of-64"])
    check, seed = read_token(verdict.replay, find("plain-numpy"))
    again = judge_program(str(tmp_path / "program.py"), find("plain-numpy"), seed, only=check)
    assert (again.accepted, again.score, again.replay) == (False, 0.0, verdict.replay)
    assert len(again.outcomes) == 1


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", [n for n, hack in HACKS.items() if hack.problem == "plain-numpy"])
def test_cheats_are_rejected_with_the_reason(name: str, bench: Bench, tmp_path: Path) -> None:
    assert_rejected(HACKS[name], bench, tmp_path)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", TORCH)
def test_cheats_in_torch_are_rejected_with_the_reason(name: str, bench: Bench, tmp_path: Path) -> None:
    assert_rejected(HACKS[name], bench, tmp_path)


def assert_rejected(hack: Hack, bench: Bench, folder: Path) -> None:
    verdict = judged(bench, folder, hack.source, hack.problem, hack.own)
    assert not verdict.accepted
    assert re.search(hack.reason, verdict.reason), verdict.reason


def test_the_library_that_a_problem_replaces_is_accepted(bench: Bench, tmp_path: Path) -> None:
    source = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
    verdict = judged(bench, tmp_path, source, "training")
    assert verdict.accepted, verdict.reason
    assert {"gradient", "far", "own", "own-address"} <= {each.check for each in verdict.outcomes}


def test_the_score_rises_with_what_is_right(bench: Bench, tmp_path: Path) -> None:
    names = ("zeros", "mean-of-value", "tail-tile-skipped", "tail-tile-skipped-of-64")
    scores = [judged(bench, tmp_path, WRONG[name]).score for name in names]
    assert scores == sorted(scores)
    assert len(set(scores)) >= 3
    assert scores[0] == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean-of-value", "the answer is the mean of value"),
        ("tail-tile-skipped-of-64", "kv_len 96|kv_len is no multiple of 64|kv_len 65"),
        ("tile-overlap-of-64", "wrong only where kv_len is above 64"),
        ("last-head-reads-first", "wrong only where heads is above 1"),
        ("query-rows-shifted", "wrong only where q_len is above 1"),
    ],
)
def test_the_reason_says_what_is_the_matter(name: str, said: str, bench: Bench, tmp_path: Path) -> None:
    assert re.search(said, judged(bench, tmp_path, WRONG[name]).reason)


def test_rules_of_others_accept_what_is_wrong() -> None:
    assert RULES["robust-kbench"](function(WRONG["maximum-starts-at-zero"]))
    assert RULES["BackendBench"](function(WRONG["keys-in-8-bits"]))
    assert RULES["KernelBench"](function(WRONG["mean-of-value"]))
    assert not RULES["robust-kbench"](function(WRONG["mean-of-value"]))
    assert not any(ask(function(WRONG["constant"])) for ask in RULES.values())


def test_the_table_on_the_page_has_every_wrong_program() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    table = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if len(row) == len(RULES) + 2}
    assert set(WRONG) <= set(table)
    assert table["program"] == [*RULES, OURS]
    assert all(not table[name][-1] for name in WRONG)


def test_a_line_of_json_for_each_program_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from conformance.cli import main

    for name, source in (("a", RIGHT["dense"]), ("b", WRONG["zeros"])):
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    assert main(["judge", str(tmp_path), "--problem", "plain-numpy", "--seed", "2"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(Path(line["program"]).name, line["verdict"]) for line in lines] == [
        ("a.py", "accepted"),
        ("b.py", "rejected"),
    ]
    assert set(lines[0]) == {"program", "verdict", "score", "reason", "replay"}
