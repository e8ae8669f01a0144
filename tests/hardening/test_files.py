"""What a run writes: whole or not at all, nowhere else, and nothing of it left by those that were killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import EVIL

import conformance
from conformance.errors import UsageError
from conformance.telling.atomic_file import OutFile
from conformance.telling.report import read_report
from conformance.vectors import load

posix = pytest.mark.skipif(os.name != "posix", reason="links and signals as POSIX has them")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@posix
@pytest.mark.parametrize("number", [os.getpid(), 2**22 + 1], ids=["ours", "of one that is gone"])
def test_a_link_in_the_way_is_not_followed(tmp_path: Path, number: int) -> None:
    victim, path = tmp_path / "victim", tmp_path / "r.json"
    victim.write_text("untouched")
    (tmp_path / f".r.json.{number}").symlink_to(victim)
    file = OutFile(path, "report")
    (tmp_path / f".r.json.{os.getpid()}").symlink_to(victim)
    file.write("new")
    assert (victim.read_text(), path.read_text()) == ("untouched", "new")
    assert not path.is_symlink()
    assert names(tmp_path) == ["r.json", "victim"]


@posix
def test_what_killed_runs_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [
        ".r.json.1",
        ".r.json.x",
        ".r.json",
        ".other.json.4194305",
        ".r.json.04",
        f".r.json.{os.getppid()}",
    ]
    for name in (*kept, ".r.json.4194305"):
        (tmp_path / name).touch()
    OutFile(tmp_path / "r.json", "report").write("new")
    assert names(tmp_path) == sorted([*kept, "r.json"])


@pytest.mark.parametrize("text", [EVIL[0], "[a]*?", "\u202e", "x" * 200])
def test_a_path_of_any_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / text.replace("/", "")
    OutFile(path, "report").write("new")
    assert [*tmp_path.iterdir()] == [path]


def test_text_that_no_file_can_hold_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "r"
    OutFile(path, "page").write("a\ud800b")
    assert path.read_text() == "a\\ud800b"


WRITER = """
import sys
from pathlib import Path
from conformance.telling.atomic_file import OutFile
file = OutFile(Path(sys.argv[1]), "report")
print("ready", flush=True)
for n in range(10**9):
    file.write(str(n % 10) * 4_000_000)
"""


@posix
@pytest.mark.covers("CONF-8", "CONF-17")
def test_killed_while_a_file_is_replaced(tmp_path: Path) -> None:
    """A large file that is written without pause: wherever the end comes, what is there is whole."""
    path = tmp_path / "r.json"
    environment = {**os.environ, "PYTHONPATH": str(Path(conformance.__file__).parents[1])}
    for wait in (0.003, 0.011, 0.017, 0.026):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], env=environment, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        while not path.exists():
            time.sleep(0.001)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        text = path.read_text()
        assert (len(text), len(set(text))) == (4_000_000, 1)
    OutFile(path, "report")
    assert names(tmp_path) == ["r.json"], "the half written ones are gone"


# Reports that somebody has edited, and then goes on with

TARGET = """
import numpy as np

def good(query, key, value):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.append({**rows[0], "case": "a/none"}), "its row a/none float32 is of no case"),
        (lambda rows: rows[0].update(case=EVIL[0]), r"its row \x1b[31m"),
        (lambda rows: rows[0].update(features=["mask"]), "its row a/0 float32 is of no case"),
        (lambda rows: rows[0].update(covers=[]), "its row a/0 float32 is of no case"),
        (lambda rows: rows[0].update(operation="other"), "its row a/0 float32 is of no case"),
        (lambda rows: rows.append({**rows[0], "dtype": "float64"}), "4 rows, 3 of them of this run"),
        (lambda rows: rows.append(rows[0]), "a/0 float32 appears twice"),
        (lambda rows: rows[0].update(seconds=10**400), "int too large to convert to float"),
    ],
    ids=range(8),
)
@pytest.mark.covers("CONF-17", "CONF-6")
def test_an_edited_report_is_not_gone_on_with(
    command: Callable[..., Any],
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_vectors: Any,
    make_case: Any,
    change: Any,
    said: str,
) -> None:
    vectors = make_vectors(*(make_case(f"a/{n}") for n in range(3)))
    monkeypatch.setattr(load, "load_vectors", lambda directory=None: vectors)
    path = tmp_path / "r.json"
    command("run", f"{target}:good", "--in-process", "--report", path, "-q")
    data = json.loads(path.read_text())
    change(data["results"])
    data["summary"]["pass"] = len(data["results"])
    path.write_text(json.dumps(data))
    before = path.read_text()
    status, out, err = command("run", f"{target}:good", "--in-process", "--resume", path)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert path.read_text() == before


def test_a_report_where_something_else_lies(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none", Path("/dev/null")):
        with pytest.raises(UsageError, match=r"cannot be read|is not JSON"):
            read_report(place)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match="cannot be"):
        read_report(tmp_path / "loop")
