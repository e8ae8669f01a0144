"""`mha-conformance init`: what it writes runs at once and passes, and nothing is overwritten."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.cli.exit_codes import PROGRAM
from conformance.cli.starting import KINDS
from conformance.names import FEATURES, PROFILES

SUFFIX = {kind: KINDS[kind].suffixes[0] for kind in KINDS}
PART = ["-k", "hand-sized or empty-row"]
"""Of the suite for JAX, which compiles for every shape anew."""


def written(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> tuple[Path, list[str]]:
    """A plug-in, and the call that init names."""
    path = folder / f"my attention{SUFFIX[kind]}"
    flags = [] if kind == "numpy" else [f"--{kind}"]
    assert main(["init", str(path), *flags]) == 0
    program, *call = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert program == PROGRAM
    return path, call


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_runs_at_once_and_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if kind == "node" and shutil.which("node") is None:
        pytest.skip("there is no node on this machine")
    path, call = written(tmp_path, kind, capsys)
    assert main([*call, *(PART if kind == "jax" else [])]) == 0
    out = capsys.readouterr().out
    *_, last = out.splitlines()
    assert " 0 fail, " in last
    assert re.match(r"conformant: \d{3} pass, " if kind != "jax" else "incomplete: ", last)
    assert "my attention" in out
    assert path.name in path.read_text("utf-8"), "it says how it is run"


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_names_exists(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(tmp_path, kind, capsys)[0].read_text("utf-8")
    (others,) = re.findall(r"The others: (.*?);", text, re.DOTALL)
    names = set(re.findall(r"[a-z_]{4,}", others)) - {"past_key", "past_value", "q_segments", "kv_segments"}
    assert len(names) > 7
    assert names <= set(FEATURES)
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("flags", [["--serving"], ["--serving", "--torch"]], ids=" ".join)
def test_one_for_serving_passes_the_profile(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--torch" in flags:
        pytest.importorskip("torch")
    path = tmp_path / "mine.py"
    assert main(["init", str(path), *flags]) == 0
    assert f"{PROGRAM} run {path}" in capsys.readouterr().out
    assert main(["run", str(path), "-k", "serving or cache or sinks", "--in-process", "--fresh", "off"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"serving +│ \d{2,} pass ", out)
    text = path.read_text("utf-8")
    features = set(re.findall(r'"(\w+)"', re.search(r"features = \{(.*?)\}", text, re.DOTALL)[1]))  # type: ignore[index]
    assert {*PROFILES["serving"], "latent"} <= features <= set(FEATURES)
    assert max(map(len, text.splitlines())) <= 120


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("mine")
    assert main(["init", str(path)]) == 2
    assert f"{path} already exists; choose another name" in capsys.readouterr().err
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.mjs"], "'a.mjs' must end in .py, as in a.py (or add --node)"),
        (["attention"], "'attention' must end in .py, as in attention.py"),
        (["a.py", "--node"], "'a.py' must end in .mjs, as in a.mjs"),
        (["a.py", "--torch", "--jax"], "init writes one plug-in: give --torch or --jax"),
        (["a.py", "--serving", "--jax"], "written in NumPy or, with --torch, for torch; leave out --jax"),
        (["a.py", "--serving", "--adapter", "flex"], "for torch; leave out --adapter"),
        (["a.mjs", "--serving"], "'a.mjs' must end in .py, as in a.py"),
        (["no/such/a.py"], "no/such is not a folder; create it first"),
        ([], "Missing argument 'FILE'"),
    ],
)
def test_what_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["init", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())
