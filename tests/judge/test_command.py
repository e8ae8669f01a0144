import io
import json
import sys
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.verdicts import asker
from tests.judge.kernels import RIGHT, WRONG

HERE = ("--problem", "plain-numpy", "--seed", "3")


def written(folder: Path, source: str) -> str:
    path = folder / "kernel.py"
    path.write_text(source, "utf-8")
    return str(path)


def test_one_line_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", written(tmp_path, RIGHT["online-32"]), *HERE, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["verdict"] == "accepted"
    assert list(json.loads(line)) == ["verdict", "score", "reason", "replay"]


def test_a_rejection_is_told_and_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = written(tmp_path, WRONG["not-normalised"])
    assert main(["judge", program, *HERE]) == 1
    out = capsys.readouterr().out
    assert out.startswith("rejected: ")
    assert "seed 3" in out
    token = out.split()[-1]
    assert main(["judge", program, "--problem", "plain-numpy", "--replay", token, "-v"]) == 1
    again = capsys.readouterr().out
    assert "FAILED" in again
    assert "0 of 1 check pass" in again


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def attention(q, k, v):\n    return q +", "SyntaxError"),
        ("import nothing_of_this_name", "No module named"),
        ("def other(q, k, v):\n    return q", "it has no attention; it defines other"),
        ("def attention(q, k):\n    return q", "takes 2 positional arguments but 3 were given"),
        ("def attention(q, k, v):\n    return q.nothing", "(line 2)"),
        ("def attention(q, k, v):\n    return q @ v", "(line 2)"),
        ("def attention(q, k, v):\n    return None", "returned NoneType, wanted an array"),
        ("def attention(q, k, v):\n    return q, k", "returned 2 results, wanted 1: output"),
    ],
)
def test_what_cannot_be_called_is_rejected(
    source: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", written(tmp_path, source), *HERE, "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert said in verdict["reason"]
    assert verdict["score"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["judge"], "TARGET is missing"),
        (["judge", "kernel.py"], "--problem is missing"),
        (["judge", "kernel.py", "--problem", "plain-numpi"], "did you mean 'plain-numpy'?"),
        (["judge", "nowhere.py", "--problem", "plain-numpy"], "no file 'nowhere.py'"),
        (["judge", "a b", "--problem", "plain-numpy"], "is no file of Python"),
        (["judge", "kernel.py", "--problem", "plain-numpy", "--replay", "j1_x"], "--replay wants a token"),
        (
            ["judge", "kernel.py", "--problem", "plain-numpy", "--replay", "j1_sharp_1_0000"],
            "is no token of problem",
        ),
        (["judge", "kernel.py", "--serve"], "leave out TARGET"),
        (["judge", ".", "--problem", "plain-numpy", "--replay", "j1_x"], "give a file, not a folder"),
        (["judge", "empty", "--problem", "plain-numpy"], "has no file that ends in .py"),
    ],
)
def test_wrong_calls_end_with_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    written(tmp_path, RIGHT["dense"])
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--json",), ("--serve",)])
def test_a_problem_of_torch_wants_torch(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # which makes its import fail
    program = written(tmp_path, RIGHT["dense"])
    asked = json.dumps({"source": RIGHT["dense"]})
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    serve = "--serve" in more
    status = main(["judge", *(() if serve else (program,)), "--problem", "kernelbench-97", *more])
    said = capsys.readouterr()
    line = json.loads(said.out)["error"] if serve else said.err
    assert "problem kernelbench-97 gives torch tensors, and torch is not installed" in line
    assert (status, len(line.splitlines())) == (0 if serve else 2, 1)
    assert serve or not said.out


def test_a_program_that_hangs_is_rejected_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asker, "FIRST_SECONDS", 0.0)
    program = written(tmp_path, "import time\ndef attention(q, k, v):\n    time.sleep(1000)")
    assert main(["judge", program, *HERE, "--json", "--timeout", "0.5"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert "it does not answer within" in verdict["reason"]
    assert verdict["score"] == 0


def test_lines_in_and_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        json.dumps({"id": "a", "source": RIGHT["split-2"]}),
        "",
        json.dumps(
            {"id": 2, "program": written(tmp_path, WRONG["zeros"]), "problem": "plain-numpy", "seed": 5}
        ),
        '{"id": 3, "source": "x", "program": "y"}',
        '{"id": 4, "source": "x", "problem": "nothing"}',
        '{"id": 5, "program": "nowhere.py"}',
        '{"id": 6, "source": 1}',
        '{"id": 7, "source": "x", "sed": 1}',
        "[]",
        "{",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(asked)))
    assert main(["judge", "--serve", *HERE]) == 0
    replies = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [reply.get("id") for reply in replies] == ["a", 2, 3, 4, 5, 6, 7, None, None]
    assert [reply.get("verdict") for reply in replies[:2]] == ["accepted", "rejected"]
    said = [reply["error"] for reply in replies[2:]]
    wanted = ("give program", "no problem", "no file", "source is 1", "got sed", "an object", "no JSON")
    assert all(words in text for words, text in zip(wanted, said, strict=True)), said
    assert all(reply["seconds"] >= 0 for reply in replies)


def test_problems_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "problems", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert len(names) >= 20
    assert {"kernelbench-97", "kernelbench-43", "flashinfer-mla-decode", "gpumode-gqa", "training"} <= set(
        names
    )
