import json
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.exploring.recipe import Recipe, token
from conformance.names import SDPA
from conformance.telling.report import read_report

pytestmark = pytest.mark.turns(3, whole=True)

PROGRAMS = Path(__file__).parent / "programs.py"
WRONG, RIGHT = f"{PROGRAMS}:whole_tiles", f"{PROGRAMS}:right"
FEW = ("--seed", "1", "--cases", "60", "--size", "small", "--no-diagnose")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    assert main(["explore", WRONG, *FEW, "-x", "-q", "--save", str(folder)]) == 1
    (file,) = folder.glob("*.json")
    return file


def test_nothing_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", RIGHT, *FEW]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("met ")
    assert "not met in this time: " in out
    assert "declares `fused`" in out
    assert "\nnothing failed: " in out
    assert out.endswith("--seed 1 --size small\n")
    assert "draws from seed 1" in err


def test_a_failure_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("r.json", "r.xml", "r.html")}
    arguments = [
        "--report",
        str(files["r.json"]),
        "--junit",
        str(files["r.xml"]),
        "--html",
        str(files["r.html"]),
    ]
    assert main(["explore", WRONG, *FEW, "-x", "-v", *arguments]) == 1
    out = capsys.readouterr().out
    for word in (
        "reduced: scaled_dot_product_attention(query ",
        "fails if: ",
        "replay: --replay x1_",
        "import numpy as np",
    ):
        assert word in out
    report = read_report(files["r.json"])
    assert report.drawing is not None
    assert report.drawing.drawn >= report.drawing.judged > 0
    (row,) = [row for row in report.results if row.replay]
    assert row.reduced
    assert row.fails_if
    assert row.fails_if in out
    data = json.loads(files["r.json"].read_text())
    assert (data["mode"], data["seed"]) == ("explore", 1)
    assert "whole_tiles" in files["r.html"].read_text()
    assert 'failures="1"' in files["r.xml"].read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seconds", "0"], "--seconds must be more than 0"),
        (["--cases", "0"], "--cases must be 1 or more"),
        (["--max-failures", "0"], "--max-failures must be 1 or more"),
        (["--seed", "-1"], "--seed wants a whole number from 0 on"),
        (["--seed", "off"], "--seed wants a whole number from 0 on"),
        (["--seed", str(10**18)], "from 0 on, of at most 18 digits, got '1000000000000000000'"),
        (["--size", "huge"], "size"),
        (["--replay", "x1_nonsense"], "--replay wants a token"),
        (["--dtype", "float128"], "dtype"),
        (["--feature", "softcap"], "does not support softcap"),
        (["--op", "multi_head_attention"], "multi_head_attention"),
        (["--save", "/nowhere/at/all"], "--save '/nowhere/at/all' cannot be used"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", WRONG, *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err.splitlines()[-1]
    assert "draws from seed" not in err


def test_a_target_that_does_not_load_is_drawn_nothing_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", f"{PROGRAMS}:nothing_of_the_kind", *FEW]) == 2
    assert "draws from seed" not in capsys.readouterr().err


def test_help_says_how_large_each_size_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "large production sizes, whose answers are known in closed form" in out
    assert "Memory that a call of --size large may take" in out


def test_nothing_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "refuses.py"
    file.write_text("def attention(query, key, value):\n    raise NotImplementedError\n")
    assert main(["explore", f"{file}:attention", *FEW]) == 2
    out, err = capsys.readouterr()
    assert "nothing was executed" in err
    assert ": 0 calls judged of " in out


def test_a_replay(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = json.loads(saved.read_text())["replay"]
    assert main(["explore", WRONG, "--replay", asked, "--no-diagnose"]) == 1
    assert f"--replay {asked}" in capsys.readouterr().out
    assert main(["explore", RIGHT, "--replay", asked, "--no-diagnose"]) == 0
    assert capsys.readouterr().out == f"nothing failed: 1 call judged of 1 drawn; --replay {asked}\n"


def test_a_replay_on_a_target_that_does_not_claim_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plain.py"
    file.write_text("def attention(query, key, value):\n    return value\n")
    asked = token(Recipe(SDPA, "float32", q_len=2, kv_len=2, causal=True))
    assert main(["explore", f"{file}:attention", "--replay", asked]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert "the token needs is_causal, which the target does not support" in err


def test_a_replay_that_the_target_refuses_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "refuses.py"
    file.write_text("def attention(query, key, value):\n    raise NotImplementedError\n")
    asked = token(Recipe(SDPA, "float32", q_len=2, kv_len=2))
    assert main(["explore", f"{file}:attention", "--replay", asked]) == 2
    assert ": 0 calls judged of 1 drawn, 1 unsupported; --replay x1_" in capsys.readouterr().out


def test_a_saved_case_is_run(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", WRONG, "--case", str(saved), "--no-diagnose"]) == 1
    assert "1 fail" in capsys.readouterr().out
    assert main(["run", RIGHT, "--case", str(saved), "--no-diagnose"]) == 0
    out = capsys.readouterr().out
    assert "incomplete: 4 pass" in out, "one case is no conformance"


def test_a_saved_case_is_shown_and_diagnosed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved)]) == 0
    assert "expected output" in capsys.readouterr().out
    assert main(["show", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expected"]["output"]["values"]
    assert main(["diagnose", WRONG, "--case", str(saved)]) == 1
    assert "one failure fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: "{", "is not JSON"),
        (lambda data: {**data, "case_version": 2}, "is not a case of version 1"),
        (lambda data: {**data, "more": 1}, "is not a case of version 1"),
        (lambda data: {**data, "inputs": {}}, "is not a case of version 1"),
        (lambda data: {**data, "options": {"window": [0, 0], "scale": "x"}}, "holds a wrong call"),
        (lambda data: {**data, "rows": [0, 4096]}, "holds a wrong call: its query has no row 4096"),
        (lambda data: {**data, "features": ["sink"]}, "'sink'; did you mean 'sinks'?"),
    ],
)
def test_a_damaged_case_is_refused_in_a_line(change, said, saved, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    changed = change(json.loads(saved.read_text()))
    file = tmp_path / "case.json"
    file.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    assert main(["run", RIGHT, "--case", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_a_case_given_twice(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", RIGHT, "--case", str(saved), "--case", str(saved)]) == 2
    assert "give each once" in capsys.readouterr().err


def test_a_case_that_follows_another_is_run_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = f"{PROGRAMS}:fingerprint"
    assert (
        main(
            [
                "explore",
                wrong,
                "--seed",
                "1",
                "--cases",
                "100",
                "--no-diagnose",
                "-x",
                "-q",
                "--save",
                str(tmp_path),
            ]
        )
        == 1
    )
    (file,) = tmp_path.glob("*.json")
    capsys.readouterr()
    assert main(["run", wrong, "--case", str(file), "--no-diagnose"]) == 1
    assert "1 pass, 1 fail" in capsys.readouterr().out


def test_a_known_failure_is_expected(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = json.loads(saved.read_text())["replay"]
    file, report = tmp_path / "known.toml", tmp_path / "r.json"
    file.write_text(f'baseline_version = 1\n[[known]]\ncase = "{asked}"\nreason = "whole tiles"\n')
    few = ("--seed", "1", "--cases", "20", "--size", "small", "--no-diagnose")
    assert main(["explore", WRONG, *few, "--baseline", str(file), "--report", str(report)]) in (0, 1)
    rows = read_report(report).results
    assert rows[0].case == asked
    assert {row.verdict for row in rows if row.case == asked} == {"xfail"}
    capsys.readouterr()
    assert main(["explore", RIGHT, *few, "--baseline", str(file)]) == 1, "what passes again fails the run"
    file.write_text('baseline_version = 1\n[[known]]\ncase = "mask/all-true"\nreason = "no token"\n')
    assert main(["explore", RIGHT, *few, "--baseline", str(file)]) == 2
    assert "is no token" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.api import explore as exploration

    report = tmp_path / "r.json"
    searched = exploration.searched

    def interrupted(*given):  # type: ignore[no-untyped-def]
        for number, event in enumerate(searched(*given)):
            if number == 5:
                raise KeyboardInterrupt
            yield event

    monkeypatch.setattr(exploration, "searched", interrupted)
    assert main(["explore", RIGHT, *FEW, "--report", str(report)]) == 130
    assert len(read_report(report).results) == 5


def test_an_interrupt_keeps_the_failure_that_is_reduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "r.json"

    def interrupted(*_):  # type: ignore[no-untyped-def]
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.exploring.search.examine", interrupted)
    wrong = RIGHT.replace(":right", ":whole_tiles")
    assert wrong != RIGHT
    assert main(["explore", wrong, "--seed", "1", "--cases", "400", "--report", str(report)]) == 130
    (row,) = (row for row in read_report(report).results if row.replay)
    assert row.verdict == "fail"
    assert "not reduced" in row.fails_if
