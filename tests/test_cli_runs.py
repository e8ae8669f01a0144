"""What `run` reads and writes beside its report: baselines, earlier reports, files for CI; and `compare`."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

import conformance
from conformance.errors import UsageError
from conformance.resources import schema
from conformance.telling.report import read_report
from conformance.vectors import load

TARGET = """
import os, pathlib, time
import numpy as np

def good(query, key, value, *, scale=None):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2)
    logits = logits * (query.shape[-1] ** -0.5 if scale is None else scale)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def refusing(query, key, value, *, scale=None):
    return good(query, key, value, scale=scale)
refusing.features = {"scale", "validation"}

def wrong(query, key, value, *, scale=None):
    return good(query, key, value, scale=1.0)

def slow(query, key, value, *, scale=None):
    with open(pathlib.Path(__file__).with_name("calls"), "a") as file:
        file.write("x")
    time.sleep(0.02)
    return good(query, key, value, scale=scale)
"""
Called = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _vectors(make_vectors: Any, make_case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cases = make_vectors(
        make_case("attention/plain"),
        make_case("attention/scaled", features=("scale",), options={"scale": 1.0}, covers=("ATT-4",)),
        make_case("softcap/plain", features=("softcap",), options={"softcap": 2.0}, covers=("ATT-5",)),
    )
    monkeypatch.setattr(load, "load_vectors", lambda directory=None: cases)


@pytest.fixture
def run(command: Called, target: Path) -> Called:
    def call(name: str, *arguments: object) -> tuple[int, str, str]:
        return command("run", f"{target}:{name}", "--in-process", "--fresh", "7", *arguments)

    return call


def baseline(path: Path, *entries: str) -> Path:
    path.write_text("\n".join(["baseline_version = 1", *(f"[[known]]\n{entry}" for entry in entries)]))
    return path


PLAIN = 'case = "attention/plain"\nreason = "the scale is always 1"'


# Baselines


@pytest.mark.covers("CONF-6", "CONF-14")
def test_all_that_fails_is_known(run: Called, tmp_path: Path) -> None:
    known, path, badge = baseline(tmp_path / "k.toml", PLAIN), tmp_path / "r.json", tmp_path / "b.json"
    status, out, _ = run("wrong", "--baseline", known, "--report", path, "--badge", badge)
    assert status == 0
    told, last = out.splitlines()[-2:]
    assert last == "non-conformant: 1 pass, 0 fail, 1 unsupported, 1 xfail"
    assert told == f"wrote report {path}, badge {badge}"
    data = json.loads(path.read_text())
    Draft202012Validator(schema("report")).validate(data)
    assert (data["status"], data["summary"]["xfail"]) == ("non-conformant", 1)
    assert data["results"][0]["known"] == {"verdict": "fail", "reason": "the scale is always 1", "report": ""}
    assert data["baseline"] == {"path": str(known), "problems": []}
    assert data["profiles"]["core"] == "non-conformant"
    assert json.loads(badge.read_text())["message"] == "conformant but for 1 known"
    assert read_report(path).to_json() == data
    assert run("wrong", "--baseline", known, "--profile", "core")[0] == 1, "a profile is met or not"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (PLAIN.replace("the scale is always 1", " "), "its reason is empty"),
        (PLAIN.replace("plain", "plan"), "no case has this ID; did you mean 'attention/plain'?"),
        (f'{PLAIN}\ndtypes = ["float32", "float33"]', "'float33' is not a dtype"),
        (f'{PLAIN}\ndtypes = ["float32", "float16"]', "it is stale: float16 was not executed"),
        (f"{PLAIN}\n[[known]]\n{PLAIN}", "another entry is about the same rows"),
        (
            f"{PLAIN}\n[[known]]\n{PLAIN.replace('attention', 'softcap')}",
            "it is stale: the case was not executed",
        ),
    ],
)
@pytest.mark.covers("CONF-15")
def test_a_baseline_that_is_not_in_order_fails_the_run(
    run: Called, tmp_path: Path, entry: str, said: str
) -> None:
    known = baseline(tmp_path / "k.toml", entry)
    junit, path = tmp_path / "j.xml", tmp_path / "r.json"
    status, out, _ = run("wrong", "--baseline", known, "--junit", junit, "--report", path)
    lines = [line for line in out.splitlines() if line.startswith(str(known))]
    assert (status, len(lines)) == (1, 1)
    assert said in lines[0]
    assert json.loads(path.read_text())["baseline"]["problems"] == lines
    assert ElementTree.parse(junit).getroot().get("failures") == str(1 + ("plan" in entry))


@pytest.mark.covers("CONF-15")
def test_a_pass_against_it_fails_the_run(run: Called, tmp_path: Path) -> None:
    known = baseline(tmp_path / "k.toml", PLAIN)
    status, out, err = run("good", "--baseline", known)
    assert status == 1
    assert out.splitlines()[-1] == "conformant: 1 pass, 0 fail, 1 unsupported, 1 xpass"
    assert f"passes, though {known} knows it to fail" in err


@pytest.mark.covers("CONF-15")
def test_a_part_of_a_run_looks_at_its_part_of_the_baseline(run: Called, tmp_path: Path) -> None:
    known = baseline(tmp_path / "k.toml", PLAIN)
    for options in (("-k", "scaled"), ("--feature", "scale"), ("--shard", "2/3"), ("--shard", "3/3")):
        status, out, _ = run("wrong", "--baseline", known, *options)
        assert str(known) not in out
        assert status == (2 if options[-1] == "3/3" else 0)


@pytest.mark.covers("CONF-14")
def test_x_goes_on_behind_what_is_known(run: Called, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert run("wrong", "-x", "--report", path)[0] == 1
    assert len(read_report(path).results) == 1
    assert run("wrong", "-x", "--report", path, "--baseline", baseline(tmp_path / "k.toml", PLAIN))[0] == 0
    assert len(read_report(path).results) == 3


def test_writing_one_and_filling_it_in(run: Called, tmp_path: Path) -> None:
    known = tmp_path / "k.toml"
    assert run("wrong", "--write-baseline", known)[0] == 1
    assert run("wrong", "--baseline", known)[0] == 1, "the reason is empty"
    known.write_text(known.read_text().replace('reason = ""', 'reason = "the scale"'))
    assert run("wrong", "--baseline", known)[0] == 0
    _, _, err = run("wrong", "--write-baseline", known)
    assert "is there already: give it as --baseline as well, so that its reasons are kept" in err
    assert run("wrong", "--baseline", known, "--write-baseline", known)[0] == 0
    assert 'reason = "the scale"' in known.read_text()


# Resuming


@pytest.mark.covers("CONF-17")
def test_a_resumed_run_asks_only_the_rest(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    arguments = ("run", f"{target}:slow", "--report", path, "--fresh", "off")
    assert command(*arguments)[0] == 0
    whole = path.read_text()
    data = json.loads(whole)
    data["summary"][data["results"].pop(0)["verdict"]] -= 1
    path.write_text(json.dumps({**data, "status": "incomplete"}))
    (tmp_path / "calls").unlink()
    status, _, err = command("run", f"{target}:slow", "--resume", path)
    assert status == 0
    assert "3 tests, 2 of them done before" in err
    assert (tmp_path / "calls").read_text() == "x"
    left = [json.loads(text) for text in (whole, path.read_text())]
    for report in left:
        del report["command"]
        for each in report["results"]:
            del each["seconds"]
    assert left[0] == left[1]


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        (("-k", "plain"), {}, "-k was not given and is plain"),
        (("--dtype", "float32"), {}, "--dtype was not given and is float32"),
        (("--fresh", "8"), {}, "--fresh was 7 and is 8"),
        ((), {"vectors_sha256": "1" * 64}, "vectors was 1111"),
        ((), {"suite_version": "0.0.1"}, "suite was 0.0.1 and is"),
        (
            (),
            {"target": {"name": "good", "version": None, "source": "x", "accuracy": "eager"}},
            "target was x and is",
        ),
        ((), {"environment": {"python": "2.7"}}, "was None and is"),
        ((), {"options": None}, "does not say its options"),
    ],
)
@pytest.mark.covers("CONF-17", "CONF-6")
def test_another_run_is_not_resumed(
    run: Called,
    command: Called,
    target: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    change: Any,
    said: str,
) -> None:
    path = tmp_path / "r.json"
    run("good", "--report", path)
    data = {k: v for k, v in {**json.loads(path.read_text()), **change}.items() if v is not None}
    path.write_text(json.dumps(data))
    before = path.read_text()
    status, out, err = command("run", f"{target}:good", "--in-process", "--resume", path, *options)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "--resume: the report" in err
    assert said.replace("None", "not given") in err
    assert path.read_text() == before, "what there was is still there"


def test_a_baseline_is_applied_to_what_was_judged_before(
    run: Called, command: Called, target: Path, tmp_path: Path
) -> None:
    path, known = tmp_path / "r.json", baseline(tmp_path / "k.toml", PLAIN)
    assert run("wrong", "--report", path)[0] == 1
    wrong = ("run", f"{target}:wrong", "--in-process", "--resume", path)
    assert command(*wrong, "--baseline", known)[0] == 0
    assert command(*wrong)[0] == 1


SCRIPT = """
import pickle, sys
from conformance.telling import recorder
from conformance.vectors import load
recorder.WRITE_SECONDS = 0.0
vectors = pickle.load(open(sys.argv[1], "rb"))
load.load_vectors = lambda directory=None: vectors
from conformance.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.covers("CONF-17", "CONF-8")
def test_a_run_that_is_killed_at_any_time_leaves_a_valid_report(
    target: Path, tmp_path: Path, make_vectors: Any, make_case: Any
) -> None:
    path, vectors = tmp_path / "r.json", tmp_path / "vectors"
    vectors.write_bytes(pickle.dumps(make_vectors(*(make_case(f"a/{n:02}") for n in range(40)))))
    environment = {**os.environ, "PYTHONPATH": str(Path(conformance.__file__).parents[1])}
    arguments = [sys.executable, "-c", SCRIPT, str(vectors), "run", f"{target}:slow", "-q"]
    draw, held = random.Random(3), 0
    more = ["--report", str(path), "--fresh", "3"]
    for _ in range(2):
        process = subprocess.Popen([*arguments, *more], env=environment, stdout=subprocess.DEVNULL)
        late = time.monotonic() + 60
        while not path.exists() and time.monotonic() < late:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.05, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        report = read_report(path)
        assert report.status == "incomplete"
        assert held <= len(report.results) <= 40
        held, more = len(report.results), ["--resume", str(path)]
    assert held > 0
    assert (
        subprocess.run(
            [*arguments, *more], env=environment, stdout=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )
    assert (len(read_report(path).results), read_report(path).executed) == (40, 40)


# Files for others


def test_summary_on_github(run: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    run("wrong", "-q")
    lines = summary.read_text().splitlines()
    assert lines[:2] == ["before", "### wrong &#40;eager&#41;: non-conformant"]
    assert "| chapter | float32 |" in lines
    assert any(line.startswith("| fail | attention/plain | float32 | output&#91;") for line in lines)


def test_the_summary_on_github_says_what_the_step_fails_by(
    run: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    status, out, _ = run("good", "-q", "--profile", "decoder")
    assert status == 1
    assert "profile decoder: incomplete (not supported: is_causal, q_offset, cache)" in out
    assert "profile decoder&#58; incomplete &#40;not supported&#58; is&#95;causal" in summary.read_text(), (
        "nothing fails, and the step does"
    )
    summary.write_text("")
    assert run("nothing")[0] == 2
    assert summary.read_text().startswith("### mha-conformance: nothing was run\n\ncannot find ")


def test_a_badge_of_another_form_is_refused_before_the_run(run: Called, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    status, out, err = run("good", "--badge", path)
    assert (status, out) == (2, "")
    assert err == (
        f"mha-conformance: --badge {str(path)!r} has an unknown ending: "
        "give a name that ends in .svg, or in .json for shields.io\n"
    )
    assert not path.exists()


def test_the_card_of_a_run_is_that_of_its_report(run: Called, command: Called, tmp_path: Path) -> None:
    path, card, again = tmp_path / "r.json", tmp_path / "c.svg", tmp_path / "d.svg"
    link = ["--link", "https://example.org/r.html"]
    status, out, _ = run("wrong", "--report", path, "--card", card, *link)
    assert (status, out.splitlines()[-2]) == (1, f"wrote report {path}, card {card}")
    assert command("report", path, "--card", again, *link)[0] == 0
    assert card.read_text("utf-8") == again.read_text("utf-8")
    assert "wrong" in card.read_text("utf-8")
    for words, said in (
        (link, "give --card OUT.svg too"),
        (["--card", tmp_path / "c.png"], "the card is SVG"),
    ):
        status, out, err = run("good", *words)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert said in err


@pytest.mark.parametrize("option", ["--junit", "--badge", "--card", "--write-baseline"])
def test_files_that_cannot_be_written_are_told_before_the_run(
    run: Called, tmp_path: Path, option: str
) -> None:
    status, out, err = run("good", option, tmp_path / "no" / "file.svg")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "is not a folder; create it first" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{target}:good", "--report", "{target}"], "report '{target}' is the target as well"),
        (["{target}", "--report", "{target}"], "report '{target}' is the target as well"),
        (["--command", "python {target}", "--html", "{target}"], "page '{target}' is the target as well"),
        (
            ["{target}:wrong", "--baseline", "{folder}/k.toml", "--junit", "{folder}/k.toml"],
            "JUnit file '{folder}/k.toml' is the baseline of the run as well",
        ),
        (
            [
                "{target}:good",
                "--resume",
                "{folder}/r.json",
                "--report",
                "{folder}/n",
                "--badge",
                "{folder}/r.json",
            ],
            "badge '{folder}/r.json' is the report to resume as well",
        ),
        (
            ["{target}:good", "--report", "{folder}/n", "--html", "{folder}/link"],
            "page '{folder}/link' is the report as well",
        ),
    ],
)
def test_nothing_is_written_over_what_a_run_reads_or_writes(
    run: Called, command: Called, target: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    run("good", "--report", tmp_path / "r.json")
    baseline(tmp_path / "k.toml", PLAIN)
    (tmp_path / "link").symlink_to(tmp_path / "n")
    before = [(tmp_path / name).read_bytes() for name in ("r.json", "k.toml", target.name)]
    filled = [text.format(target=target, folder=tmp_path) for text in (*arguments, said)]
    status, out, err = command("run", *filled[:-1])
    assert (status, out) == (2, "")
    assert err == f"mha-conformance: {filled[-1]}, which would be lost: give another name\n"
    assert [(tmp_path / name).read_bytes() for name in ("r.json", "k.toml", target.name)] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fresh", "x"], "--fresh wants a whole number from 0 on, or off, got 'x'"),
        (["--fresh", "-1"], "--fresh wants a whole number"),
        (["--fresh", "9" * 30], "--fresh wants a whole number"),
        (["--baseline", "none.toml"], "baseline none.toml cannot be read: No such file"),
        (["--resume", "none.json"], "report none.json cannot be read: No such file"),
        (["--resume", "{folder}/text"], "is not JSON"),
    ],
)
@pytest.mark.covers("CONF-6")
def test_bad_calls(
    command: Called,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no report")
    arguments = [argument.replace("{folder}", str(tmp_path)) for argument in arguments]
    status, out, err = command("run", f"{target}:good", "--in-process", *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


# Comparing


@pytest.mark.covers("CONF-18", "CONF-6")
def test_compare(run: Called, command: Called, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.json" for name in ("good", "wrong")}
    for name, path in paths.items():
        run(name, "--report", path)
    status, out, _ = command("compare", paths["good"], paths["wrong"])
    assert (status, out.splitlines()[-1]) == (
        1,
        "1 regressed, 0 fixed, 0 changed, 0 new, 0 vanished, 2 the same",
    )
    assert "regressed attention/plain float32 (pass -> fail): output[" in out
    assert command("compare", paths["wrong"], paths["good"])[0] == 0
    assert command("compare", paths["good"], paths["good"])[0] == 0
    status, out, _ = command("compare", paths["good"], paths["wrong"], "--json")
    assert status == 1
    Draft202012Validator(schema("comparison")).validate(json.loads(out))
    assert "### 1 regressed" in command("compare", paths["good"], paths["wrong"], "--markdown")[1]
    status, _, err = command("compare", paths["good"], paths["wrong"], "--markdown", "--json")
    assert (status, err) == (2, "mha-conformance: give either --json or --markdown\n")
    assert command("compare", paths["good"], tmp_path / "none.json")[0] == 2


# From Python


@pytest.mark.covers("CONF-14")
def test_from_python(target: Path, tmp_path: Path) -> None:
    known, junit, report = baseline(tmp_path / "k.toml", PLAIN), tmp_path / "j.xml", tmp_path / "r.json"
    found = conformance.run(
        f"{target}:wrong",
        in_process=True,
        baseline=known,
        junit=junit,
        report=report,
        fresh=7,
        no_diagnose=True,
    )
    assert (found.status, found.as_expected) == ("non-conformant", True)
    assert found.options is not None
    assert found.options["fresh"] == 7
    assert ElementTree.parse(junit).getroot().get("skipped") == "2"
    assert not conformance.run(f"{target}:wrong", in_process=True).as_expected
    again = conformance.run(f"{target}:wrong", in_process=True, resume=report, baseline=str(known))
    assert [(row.key, row.verdict, row.known) for row in again.results] == [
        (row.key, row.verdict, row.known) for row in found.results
    ]
    with pytest.raises(UsageError, match="--fresh was 7 and is not given"):
        conformance.run(f"{target}:wrong", in_process=True, resume=report, fresh="off")


def test_a_run_ends_with_what_was_not_tested(run: Called) -> None:
    told = "not tested: float64, float16, bfloat16, which the target does not declare in `dtypes`"
    assert told in run("good")[1].splitlines()
    assert "in `dtypes`" not in run("good", "--dtype", "float32")[1]
    refusals = (
        "calls that must be refused were not tested: declare `validation` in `features` if they are refused"
    )
    assert refusals in run("good")[1].splitlines()
    assert refusals not in run("good", "-k", "plain")[1], "a part of the suite says nothing of the rest"
    assert refusals not in run("refusing")[1]


def test_variants_that_were_not_asked_are_not_counted(run: Called) -> None:
    assert "2 tests were also run with randomised inputs; repeat them with --fresh" in run("good")[1]
    assert "1 test was also run with randomised inputs; repeat it with --fresh" in run("wrong", "-x")[1]
