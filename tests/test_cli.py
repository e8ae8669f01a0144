"""The command: its exit statuses, its one line for every bad call, and `conformance.run` beside it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import conformance
from conformance.errors import UsageError
from conformance.resources import schema
from conformance.vectors import load

TARGET = """
import time
import numpy as np

def good(query, key, value, *, scale=None):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2)
    weights = np.exp(logits * (query.shape[-1] ** -0.5 if scale is None else scale))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def wrong(query, key, value):
    return query

def refusing(query, key, value):
    raise NotImplementedError("\\x1b[2J not today")

def sleepy(query, key, value):
    time.sleep(30)
"""


@pytest.fixture(autouse=True)
def _vectors(make_vectors: Any, make_case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cases = make_vectors(
        make_case("attention/plain"),
        make_case("attention/scaled", features=("scale",), options={"scale": 0.25}, covers=("ATT-4",)),
        make_case("softcap/plain", features=("softcap",), options={"softcap": 2.0}, covers=("ATT-5",)),
    )
    monkeypatch.setattr(load, "load_vectors", lambda directory=None: cases)


Called = Callable[..., tuple[int, str, str]]


# Exit statuses


@pytest.mark.covers("CONF-6", "CONF-8")
def test_conformant(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    status, out, _ = command("run", f"{target}:good", "--report", path)
    assert status == 0
    assert out.splitlines()[-1] == "conformant: 2 pass, 0 fail, 1 unsupported"
    data = json.loads(path.read_text())
    Draft202012Validator(schema("report")).validate(data)
    assert data["status"] == "conformant"
    assert data["command"] == ["mha-conformance", "run", f"{target}:good", "--report", str(path)]
    assert [(r["case"], r["verdict"]) for r in data["results"]] == [
        ("attention/plain", "pass"), ("attention/scaled", "pass"), ("softcap/plain", "unsupported"),
    ]  # fmt: skip


@pytest.mark.covers("CONF-6")
def test_failed(command: Called, target: Path) -> None:
    status, out, err = command("run", f"{target}:wrong", "--in-process")
    assert status == 1
    assert out.splitlines()[-1] == "non-conformant: 0 pass, 1 fail, 2 unsupported"
    first, second = err.splitlines()[1:]
    assert first == "fail    attention/plain float32 (ATT-1 weighted sum of values)"
    assert second.startswith("        output[")
    (blamed,) = (line for line in out.splitlines() if "1 of 1" in line and "ATT-1" in line)
    assert "The output is the sum of the visible values" in blamed


@pytest.mark.covers("CONF-7")
def test_nothing_executed(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    status, _, err = command("run", f"{target}:refusing", "--in-process", "--report", path)
    assert status == 2
    assert err.splitlines()[-1] == (
        f"mha-conformance: nothing was executed: {target}:refusing supports none of 3 cases; "
        r"attention/plain: \x1b[2J not today"
    )
    assert json.loads(path.read_text())["status"] == "incomplete"


@pytest.mark.parametrize(("profile", "status"), [("core", 0), ("encoder", 1), ("full", 1)])
@pytest.mark.covers("CONF-6")
def test_profile(command: Called, target: Path, profile: str, status: int) -> None:
    assert command("run", f"{target}:good", "--in-process", "--profile", profile)[0] == status


@pytest.mark.covers("CONF-6")
def test_narrowed_is_incomplete_and_not_failed(command: Called, target: Path) -> None:
    status, out, _ = command("run", f"{target}:good", "--in-process", "-k", "plain")
    assert (status, out.splitlines()[-2:]) == (
        0,
        [
            "incomplete because -k plain left out a part of the suite; every test that was run passes",
            "incomplete: 1 pass, 0 fail, 1 unsupported",
        ],
    )


def test_quiet_and_verbose(command: Called, target: Path) -> None:
    _, out, err = command("run", f"{target}:good", "--in-process", "-q")
    assert (out, err) == ("conformant: 2 pass, 0 fail, 1 unsupported\n", "")
    _, _, err = command("run", f"{target}:good", "--in-process", "-v")
    assert "pass        attention/plain float32" in err


HEED = """
import os, signal, sys
for ignored in (signal.SIGINT, signal.SIGHUP):
    signal.signal(ignored, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Becomes the Python that it is given, which hears what nohup and a shell's & have a program ignore."""


@pytest.mark.parametrize(
    ("workers", "sent"), [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGTERM), (2, signal.SIGHUP)]
)
@pytest.mark.covers("CONF-6")
def test_interrupted(target: Path, tmp_path: Path, workers: int, sent: signal.Signals) -> None:
    """Ctrl-C and its like end the run with 130, no traceback, and no process left behind."""
    path, pids = tmp_path / "report.json", tmp_path / "pids"
    pids.mkdir()
    target.write_text(
        TARGET + f"\nimport os, pathlib\n(pathlib.Path({str(pids)!r}) / str(os.getpid())).touch()\n"
    )
    root = Path(conformance.__file__).parents[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", HEED, "-m", "conformance"),
            *("run", f"{target}:sleepy", "--report", str(path), "-v"),
            *("-j", str(workers), "-k", "attention or softcap"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert process.stderr is not None
        assert "tolerance policy eager" in process.stderr.readline()
        deadline = time.monotonic() + 20
        while len(list(pids.iterdir())) < workers and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(sent)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert (
        err.splitlines()[-1]
        == f"mha-conformance: interrupted; to continue, repeat the command with --resume {path}"
    )
    assert out.splitlines()[-1].startswith("incomplete: 0 pass")
    assert json.loads(path.read_text())["status"] == "incomplete"
    started = [int(pid.name) for pid in pids.iterdir()]
    assert len(started) == workers
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_give_the_same_report(command: Called, target: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{workers}.json" for workers in (1, 2)]
    for path in paths:
        assert command("run", f"{target}:good", "-j", path.stem, "--report", path, "--fresh", 7)[0] == 0
    one, two = (json.loads(path.read_text()) for path in paths)
    for report in (one, two):
        del report["command"]
        for row in report["results"]:
            del row["seconds"]
    assert one == two


@pytest.mark.parametrize("seconds", ["inf", "1e10", "1e300"])
def test_any_patience(command: Called, target: Path, seconds: str) -> None:
    assert command("run", f"{target}:good", "--timeout", seconds, "-k", "plain", "-q")[0] == 0


def test_a_long_expression(command: Called, target: Path) -> None:
    for word in ("or", "and"):
        expression = f" {word} ".join(["plain"] * 5000)
        assert command("run", f"{target}:good", "--in-process", "-k", expression, "-q")[0] == 0


def test_what_is_assumed_is_said_once(
    command: Called, make_vectors: Any, make_case: Any, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    def run(operator: str, *features: tuple[str, ...]) -> list[str]:
        cases = make_vectors(*(make_case(f"a/c{n}", features=f) for n, f in enumerate(features)))
        monkeypatch.setattr(load, "load_vectors", lambda directory=None: cases)
        status, out, err = command("run", f"{target}:{operator}", "--in-process")
        assert status == (operator == "wrong")
        told = [line for line in err.splitlines() if "assumed" in line]
        assert len(told) == (operator == "wrong"), "of the first failure, and once"
        for line in told:
            assert re.match(
                r" {8}it needs (gqa|empty), which is assumed to be supported, since .* write features", line
            )
        return [line for line in out.splitlines() if "assumed" in line]

    hint = (
        "all failures need empty or gqa, which are assumed to be supported, since the target declares no features; "
        'if they are not, write features = {"value_dim", "broadcast"} in its file'
    )
    assert sorted(run("wrong", ("gqa",), ("empty",))) in (
        [hint],
        [hint.replace("empty or gqa", "gqa or empty")],
    )
    assert run("wrong", ("gqa",), ()) == [], "then it is no question of what is claimed"
    assert run("good", ("gqa",)) == []


def test_a_name_of_any_length(command: Called, target: Path, tmp_path: Path) -> None:
    target.write_text(
        "class T:\n    name = version = 'x' * 10_000_000\n"
        "    def scaled_dot_product_attention(self, query, key, value): return query\nt = T()\n"
    )
    began = time.monotonic()
    _, out, err = command("run", f"{target}:t", "--in-process", "--report", tmp_path / "r.json")
    _, table, _ = command("report", tmp_path / "r.json")
    assert len(out) + len(err) + len(table) < 20_000
    assert time.monotonic() - began < 20


# Streams


def python(script: str, target: Path, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", script.format(command=f"{sys.executable} -m conformance", target=target)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(conformance.__file__).parents[1]), **environment},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("{command} list features >&-", "stdout is closed"),
        ("{command} list features >/dev/full", "No space left on device"),
        ("{command} list nothing 2>&-", ""),
    ],
)
def test_output_that_goes_nowhere(target: Path, script: str, message: str) -> None:
    status, out, err = python(script, target)
    assert (status, out, len(err.splitlines())) == (2, "", bool(message))
    assert message in err


def test_an_interrupt_when_nobody_reads_any_more(target: Path, tmp_path: Path) -> None:
    """As with `| tee`, which Ctrl-C ends as well."""
    path = tmp_path / "report.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "conformance", "run", f"{target}:sleepy", "-v", "--report", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(conformance.__file__).parents[1])},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"tolerance policy eager" in process.stderr.readline()
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
    assert json.loads(path.read_text())["status"] == "incomplete"


def test_output_in_ascii(target: Path) -> None:
    status, out, err = python("{command} explain ATT-3 && {command} show é", target, PYTHONIOENCODING="ascii")
    assert (status, "\\xb7" in out, "\\xe9" in err) == (2, True, True)
    assert "Traceback" not in err


def test_ctrl_c_while_it_imports(target: Path) -> None:
    (target.parent / "click.py").write_text("raise KeyboardInterrupt\n")
    path = f"{target.parent}{os.pathsep}{Path(conformance.__file__).parents[1]}"
    assert python("{command} list features", target, PYTHONPATH=path) == (
        130, "", "mha-conformance: interrupted\n",
    )  # fmt: skip


# Bad calls: one line, the thing and the remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "give either a TARGET or --command PROGRAM"),
        (["run", "nunpy"], "no backend, module or file named 'nunpy'; did you mean 'numpy'?"),
        (["run", "{target}:god"], "cannot find 'god' in .*; did you mean 'good'?"),
        (["run", "{target}:good", "--dtype", "float33"], "unknown dtype 'float33'; did you mean 'float32'?"),
        (["run", "{target}:good", "--dtype", "float64"], "does not support float64; it supports float32"),
        (
            ["run", "{target}:good", "--profile", "decode"],
            "unknown profile 'decode'; did you mean 'decoder'?",
        ),
        (["run", "{target}:good", "--feature", "maks"], "unknown feature 'maks'; did you mean 'mask'?"),
        (["run", "{target}:good", "--op", "multi_head"], "did you mean 'multi_head_attention'?"),
        (["run", "{target}:good", "--accuracy", "fuse"], "unknown accuracy 'fuse'; did you mean 'fused'?"),
        (["run", "{target}:good", "--shard", "3"], "shard '3' is not of the form I/N"),
        (["run", "{target}:good", "--device", "cuda"], "numpy makes no array on device 'cuda'"),
        (["run", "{target}:good", "-k", "("], "-k expression '(' cannot be read"),
        (
            ["run", "{target}:good", "--report"],
            "Option '--report' requires an argument. See `mha-conformance run --help`.",
        ),
        (["vectors", "export", "--no"], "See `mha-conformance vectors export --help`."),
        (["run", "{target}:good", "-k", "nothing"], "no case is left to run by -k nothing"),
        (["run", "{target}:good", "--timeout", "0"], "--timeout must be more than 0"),
        (
            ["run", "{target}:good", "--timeout", "x"],
            "'x' is not a valid float. See `mha-conformance run --help`.",
        ),
        (["run", "{target}:good", "--timeout", "nan"], "--timeout must be more than 0"),
        (["run", "{target}:good", "--shard", "1/" + "9" * 5000], "is not of the form I/N"),
        (["run", "{target}:good", "-k", "(" * 5000], "cannot be read at '('"),
        (["run", "{target}:good", "-k", "not " * 5000 + "a"], "cannot be read at 'not'"),
        (["run", "{target}:good", "--report", "r" * 300], "cannot be written: File name too long"),
        (["run", "{target}:good", "--report", ""], "cannot be written: it exists and is not a file"),
        (["run", "{target}:good", "--report", "{folder}/circle"], "cannot be written: "),
        (["run", "x" * 100_000], "no backend, module or file named 'xxx"),
        (["run", "{target}:good", "-j", "0"], "-j must be 1 or more workers, got 0"),
        (["run", "{target}:good", "-j", "2", "--in-process"], "goes neither with --in-process"),
        (["explain", "MASK-33"], "unknown requirement 'MASK-33'; did you mean 'MASK-3'?"),
        (["run", "{target}:good", "--report", "{folder}"], "cannot be written"),
        (["run", "{target}:good", "--report", "{folder}/no/r.json"], "is not a folder; create it first"),
        (["run", "--command", "no-such-program"], "cannot start 'no-such-program'"),
        (
            ["run", "{folder}/needs.py:f"],
            f"no module named 'no_such_library'; install it for {sys.executable}",
        ),
        (["run", "{folder}/relative.py:f"], "a file has no package: name it as package.module:attribute"),
        (["run", "--command", "'"], "cannot be read: No closing quotation"),
        (["run", "{target}:good", "--verbos"], "No such option"),
        (["jump"], "No such command 'jump'"),
        (["run", "{target}:good", "--dtpye", "float32"], "No such option '--dtpye'; did you mean '--dtype'?"),
        (["list", "case"], "unknown list 'case'; did you mean 'cases'?"),
        (["show", "mask-3"], "mask-3 is a requirement: say `mha-conformance explain mask-3`"),
        (["show", "mask-inverted"], "mask-inverted is a defect: say `mha-conformance explain mask-inverted`"),
        (["explain", "attention/plain"], "is a case: say `mha-conformance show attention/plain`"),
        (["show", "attention/plan"], "unknown case 'attention/plan'; did you mean 'attention/plain'?"),
        (["show", "attention/plan", "--save", "{folder}/new.json"], "unknown case 'attention/plan'"),
        (["show", "attention/plain", "--save", "{target}"], "must end in .json, as in case.json"),
        (
            ["show", "attention/plain", "--save", "{folder}/no/new.json"],
            "new.json cannot be written: No such",
        ),
        (
            ["show", "a.json", "--save", "{folder}/new.json"],
            "--save wants the ID of a stored case; a.json is",
        ),
        (["report", "{target}"], "is not JSON"),
        (["report"], "Missing argument"),
        (["run", "{target}\x1b[2J"], r"\x1b[2J"),
    ],
)
@pytest.mark.covers("CONF-6", "CONF-7")
def test_one_line_and_status_2(command: Called, target: Path, arguments: list[str], message: str) -> None:
    target.with_name("circle").symlink_to("circle")
    target.with_name("needs.py").write_text("import no_such_library")
    target.with_name("relative.py").write_text("from .target import good")
    filled = [argument.format(target=target, folder=target.parent) for argument in arguments]
    status, out, err = command(*filled)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("mha-conformance: ")
    assert re.search(message if ".*" in message else re.escape(message), line)


def test_damaged_vectors(
    command: Called, target: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damaged(directory: Path | None = None) -> Any:
        raise UsageError("vector file x is damaged")

    monkeypatch.setattr(load, "load_vectors", damaged)
    for arguments in (["run", f"{target}:good"], ["list", "cases"], ["show", "x"]):
        assert command(*arguments) == (2, "", "mha-conformance: vector file x is damaged\n")


def test_the_report_s_path_is_tried_before_the_target(command: Called, tmp_path: Path) -> None:
    _, _, err = command("run", "nunpy", "--report", tmp_path)
    assert "cannot be written" in err


# Looking


def test_the_help_lists_what_the_commands_say_of_themselves() -> None:
    from conformance.cli.commands import COMMANDS, loaded

    width = max(len(line) for _, line in COMMANDS.values())
    said = {name: command.get_short_help_str(width) for name, command in loaded().items()}
    assert said == {name: line for name, (_, line) in COMMANDS.items()}


def test_the_help_imports_no_command() -> None:
    code = "import sys; from conformance.cli import main; main(['--help'])"
    code += "; print({'numpy', 'jsonschema'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("words", "not_imported"),
    [
        ("list backends", {"numpy", "jsonschema", "conformance.running.runner", "conformance.defects.bank"}),
        ("list cases", {"jsonschema", "conformance.running.runner", "conformance.defects.bank"}),
        ("explain MASK-3", {"jsonschema", "conformance.running.runner"}),
    ],
)
def test_what_a_short_command_need_not_wait_for(words: str, not_imported: set[str]) -> None:
    code = f"import sys; from conformance.cli import main; main({words.split()})"
    code += f"; print(sorted({not_imported} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_shows_examples(command: Called) -> None:
    names = ["run", "init", "list", "show", "explain", "compare", "report", "vectors", "trace"]
    for call in ([], *([name] for name in names), ["vectors", "export"], ["vectors", "verify"]):
        status, out, _ = command(*call, "--help")
        assert status == 0
        assert "\b" not in out
        (heading,) = (n for n, line in enumerate(out.splitlines()) if line in ("  Example:", "  Examples:"))
        examples = out.splitlines()[heading + 1 :]
        assert examples
        assert (len(examples) > 1) == (out.splitlines()[heading] == "  Examples:")
        assert all(
            line.startswith(f"    {' '.join(['mha-conformance', *call])} ".rstrip()) for line in examples
        )
    assert command()[0] == 2


def test_version(command: Called) -> None:
    _, out, _ = command("--version")
    assert re.fullmatch(r"mha-conformance \d+\.\d+\.\d+ \(spec \d+\.\d+, vectors \d+\)\n", out)


@pytest.mark.parametrize("what", ["backends", "cases", "requirements", "features", "profiles", "defects"])
def test_list(command: Called, what: str) -> None:
    status, out, _ = command("list", what, "--json")
    entries = json.loads(out)
    assert status == 0
    assert entries
    first = entries[0].get("id") or entries[0]["name"]
    assert first in command("list", what)[1]


def test_list_links_requirements_to_cases(command: Called) -> None:
    entries = {entry["id"]: entry for entry in json.loads(command("list", "requirements", "--json")[1])}
    assert entries["ATT-4"]["cases"] == ["attention/scaled"]


def test_show(command: Called) -> None:
    status, out, _ = command("show", "attention/scaled")
    assert status == 0
    assert "covers     ATT-4 explicit scale  " in out
    assert "option     scale = 0.25" in out
    assert "input query (2, 3, 4)" in out
    assert "  float32: within 1e-06 (eager), within 5e-07 (fused)" in out
    full = command("show", "attention/scaled", "-v")[1]
    assert "float32 fused: within min(W, 6 s), W at most 5e-07" in full
    data = json.loads(command("show", "attention/scaled", "--json")[1])
    assert len(data["expected"]["output"]["tolerance"]["float32"]["eager"]["W"]) == 2


def test_show_saves_a_case_that_run_takes(command: Called, target: Path, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    status, out, _ = command("show", "attention/scaled", "--save", file)
    assert status == 0
    assert out.startswith(command("show", "attention/scaled")[1])
    assert out.endswith(f"\n{file} holds it in float32; `mha-conformance run TARGET --case {file}` runs it\n")
    assert command("run", f"{target}:good", "--case", file)[1].endswith("incomplete: 1 pass, 0 fail\n")
    assert "option     scale = 0.25" in command("show", file)[1]
    before = file.read_bytes()
    assert command("show", "attention/plain", "--save", file) == (
        2, "", f"mha-conformance: {file} already exists; choose another name\n",
    )  # fmt: skip
    assert file.read_bytes() == before
    other = tmp_path / "other.json"
    assert json.loads(command("show", "attention/scaled", "--save", other, "--json")[1])["id"]
    assert other.read_bytes() == before


def test_explain(command: Called) -> None:
    status, out, _ = command("explain", "ATT-4")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "ATT-4 explicit scale  MUST · scale · since 1.0  (spec/attention.md)"
    assert "Rationale" in lines
    assert '  See "0005 A given scale is literal".' in lines
    assert any(line.startswith("Decision  0005 ") and "decisions/0005-" in line for line in lines)
    assert "  attention/scaled  A small case of the tests." in lines
    assert any(line.startswith("  scale-argument-ignored ") for line in lines)
    assert "](" not in out
    data = json.loads(command("explain", "att-4", "--json")[1])
    assert data["level"] == "MUST"
    assert data["features"] == ["scale"]
    assert data["rationale"]
    assert data["decisions"][0]["decision"].startswith("None is one over the square root")
    assert [case["id"] for case in data["cases"]] == ["attention/scaled"]
    assert "scale-argument-ignored" in {defect["id"] for defect in data["defects"]}


def test_explain_a_defect(command: Called) -> None:
    status, out, _ = command("explain", "mask-inverted")
    assert status == 0
    assert "  True in your mask hides the key" in out
    assert "violates  MASK-1 True may attend  True in `mask` means" in out
    assert "on record that show it" in out
    assert set(json.loads(command("explain", "mask-inverted", "--json")[1])["shown by"]) >= {"float32"}


def test_profiles_say_what_cannot_be_met(command: Called) -> None:
    assert "also needs the gradient of each claimed operation" in command("list", "profiles")[1]


def test_explain_what_is_untested(command: Called) -> None:
    out = command("explain", "CONF-11")[1]
    assert "untested: it concerns what people write about a report" in out
    assert out.splitlines()[-3:] == ["No case", "", "No known mistake"]


def test_report_of_many(command: Called, target: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.json" for name in ("good", "wrong")]
    for path in paths:
        command("run", f"{target}:{path.stem}", "--in-process", "--report", path)
    status, out, _ = command("report", *paths)
    assert status == 0
    assert out.splitlines()[-2:] == [
        "1 good (eager): conformant: 2 pass, 0 fail, 1 unsupported",
        "2 wrong (eager): non-conformant: 0 pass, 1 fail, 2 unsupported",
    ]
    assert "1 fail" in next(line for line in out.splitlines() if line.startswith(" attention"))


def test_no_page_is_written_over_a_report(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command("run", f"{target}:good", "--in-process", "--report", path)
    before = path.read_text()
    (tmp_path / "link.html").symlink_to(path)
    for page in (path, tmp_path / "link.html"):
        status, out, err = command("report", path, "--html", page)
        assert (status, out) == (2, "")
        assert err == (
            f"mha-conformance: page '{page}' is the report as well, which would be lost: give another name\n"
        )
    assert path.read_text() == before


def test_a_huge_number_in_a_report(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command("run", f"{target}:wrong", "--in-process", "--report", path)
    data = json.loads(path.read_text())
    data["results"][0]["worst"]["allowed"] = 10**400
    path.write_text(json.dumps(data))
    status, _, err = command("report", path)
    assert (status, len(err.splitlines())) == (2, 1)
    assert "is not a report of version 1: int too large" in err


# From Python


def test_run_from_python(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = conformance.run(f"{target}:good", dtype="float32", report=path)
    assert isinstance(report, conformance.Report)
    assert (report.status, report.executed, report.failed) == ("conformant", 2, 0)
    assert json.loads(path.read_text())["status"] == "conformant"


def test_run_of_a_python_object() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return query

    report = conformance.run(attention, k="attention/plain")
    assert (report.status, report.target.name) == ("non-conformant", "attention")
    assert "attention" in report.target.source


def test_run_refuses_as_the_command_does(target: Path) -> None:
    with pytest.raises(UsageError, match="unknown dtype 'float33'"):
        conformance.run(f"{target}:good", dtype=["float33"])
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        conformance.walk  # noqa: B018


@pytest.mark.parametrize("target", [None, 3, [1], {}, b"x", 1.5])
def test_run_says_in_python_what_it_wants(target: Any) -> None:
    with pytest.raises(UsageError, match=r"conformance\.run wants"):
        conformance.run(target)
    with pytest.raises(UsageError, match=r"conformance\.run wants"):
        conformance.run("numpy", command="x")


def test_run_takes_the_options_of_the_command() -> None:
    import inspect

    from conformance.cli.running import run

    options = {
        option.opts[-1].lstrip("-").replace("-", "_") for option in run.params if option.name != "target"
    }
    assert options - {"q", "v"} == set(inspect.signature(conformance.run).parameters) - {"target"}


def test_a_module_inside_a_module_has_no_remedy_that_is_no_target(command: Called, target: Path) -> None:
    status, _, err = command("run", f"{target}:time")
    assert status == 2
    assert err.rstrip().endswith("and cannot be called")
