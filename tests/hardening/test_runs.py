"""What may happen to a run and its report: other runs, edits afterwards, signals, a folder that goes away."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance.errors import UsageError
from conformance.telling.atomic_file import OutFile
from conformance.telling.file_lock import Held, beside
from conformance.vectors import load

ROOT = Path(conformance.__file__).parents[1]
TARGET = """
import os, time
import numpy as np

def good(query, key, value):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(logits)
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def homeless(query, key, value):
    os.rmdir(os.getcwd())
    os._exit(3)
"""
Called = Callable[..., tuple[int, str, str]]
posix = pytest.mark.skipif(os.name != "posix", reason="locks, signals and folders as POSIX has them")


@pytest.fixture(autouse=True)
def _vectors(make_vectors: Any, make_case: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    cases = make_vectors(*(make_case(f"a/{n}") for n in range(3)))
    monkeypatch.setattr(load, "load_vectors", lambda directory=None: cases)
    (tmp_path / "vectors").write_bytes(pickle.dumps(cases))


SMALL = """
import pickle, sys
from conformance.vectors import load
vectors = pickle.load(open(sys.argv[1], "rb"))
load.load_vectors = lambda directory=None: vectors
from conformance.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""The command with the few cases of this file."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.py"
    path.write_text(TARGET)
    return path


# Other runs


HOLDING = """
import sys
from pathlib import Path
from conformance.telling.file_lock import Held
from conformance.telling.atomic_file import OutFile
held = Held([OutFile(Path(sys.argv[1]), "report")])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_run(path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@posix
@pytest.mark.parametrize("option", ["--report", "--html", "--junit", "--badge", "--card", "--write-baseline"])
@pytest.mark.covers("CONF-6")
def test_one_run_at_a_time_writes_a_file(command: Called, target: Path, tmp_path: Path, option: str) -> None:
    path, link = tmp_path / "out.svg", tmp_path / "link.svg"
    link.symlink_to(path)
    with another_run(path) as other:
        for name in (path, link):
            status, out, err = command("run", f"{target}:good", "--in-process", option, name)
            assert (status, out, len(err.splitlines())) == (2, "", 1)
            assert f"{str(name)!r} is being written by another run: wait for its end" in err
        assert not path.exists()
        other.kill()  # with SIGKILL: its lock stays behind as a file, and holds nobody
        other.wait()
        assert beside(path).exists()
        assert command("run", f"{target}:good", "--in-process", option, path)[0] == 0
    assert path.exists()
    assert not beside(path).exists()


def test_a_file_is_let_go_of_at_the_end(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for name in ("good", "none", "good"):
        try:
            conformance.run(f"{target}:{name}", in_process=True, report=path)
        except UsageError:
            assert name == "none"
        assert not beside(path).exists()


@posix
def test_two_runs_of_one_process_are_two_runs(tmp_path: Path) -> None:
    file = OutFile(tmp_path / "r.json", "report")
    first = Held([file])
    other = OutFile(tmp_path / "s.json", "report")
    with pytest.raises(UsageError, match="is being written by another run"):
        Held([other, file])
    assert not beside(other.path).exists()
    first.release()
    Held([other, file]).release()


@posix
def test_what_lies_in_the_place_of_a_lock_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    file = OutFile(tmp_path / "r.json", "report")
    lock, victim = beside(file.path), tmp_path / "victim"
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to(victim)):
        make(lock)
        with pytest.raises(UsageError, match=r"r\.json\.lock, the lock, .*: remove it$"):
            Held([file])
        (os.rmdir if lock.is_dir() else os.unlink)(lock)
    assert not victim.exists()
    Held([file]).release()


def test_names_of_locks(tmp_path: Path) -> None:
    assert beside(tmp_path / "r.json").name == ".r.json.lock"
    long = [beside(tmp_path / f"{'x' * 200}{n}").name for n in range(2)]
    assert long[0] != long[1]
    assert max(map(len, long)) < 60


# A report that was changed afterwards


@pytest.mark.covers("CONF-6")
def test_a_report_that_was_changed_after_its_run(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    out = command("run", f"{target}:good", "--in-process", "--report", path)[1]
    told = re.findall("^report sha256: ([0-9a-f]{64})$", out, re.MULTILINE)
    assert told == [sha256(path.read_bytes()).hexdigest()]
    given = ["--sha256", f"sha256:{told[0].upper()}", "--sha256", "0" * 64]
    assert command("report", path, *given)[0] == 0
    assert command("compare", path, path, *given)[0] == 0
    path.write_text(path.read_text().replace('"numpy": "', '"numpy": "1'))
    for call in (["report", path], ["compare", path, path]):
        assert command(*call)[0] == 0
        status, out, err = command(*call, *given)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert "which was not given: it was changed after its run, or is of another" in err
    assert "give the 64 digits" in command("report", path, "--sha256", "123")[2]


@posix
@pytest.mark.parametrize("name", ["removing", "replacing", "filling"])
@pytest.mark.covers("CONF-6")
def test_a_target_that_is_in_the_way_of_the_report(target: Path, tmp_path: Path, name: str) -> None:
    """It is told in a line, after the table; the run itself goes on."""
    path = tmp_path / "out" / "r.json"
    path.parent.mkdir()
    target.write_text(
        f"{TARGET}\nimport resource, shutil\nOUT = {str(path)!r}\n"
        "def removing(query, key, value):\n    shutil.rmtree(os.path.dirname(OUT), ignore_errors=True)\n"
        "    return good(query, key, value)\n"
        "def replacing(query, key, value):\n    os.path.isdir(OUT) or (os.unlink(OUT), os.mkdir(OUT))\n"
        "    open(os.path.join(OUT, 'x'), 'w').close()\n    return good(query, key, value)\n"
        "def filling(query, key, value):\n    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "    return good(query, key, value)\n"
    )
    where = ["--in-process"] if name == "filling" else []
    call = ["-m", "conformance", "run", f"{target}:{name}", *where, "-k", "a", "--report", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", SMALL, str(tmp_path / "vectors"), *call[2:]],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last) == (2, "incomplete: 3 pass, 0 fail")
    assert re.search(
        r"^mha-conformance: report .*r\.json cannot be written: [A-Z]", done.stderr, re.MULTILINE
    )
    assert "Traceback" not in done.stderr
    assert not beside(path).exists()


# Signals


@posix
@pytest.mark.parametrize("before", [None, "an earlier run's"], ids=["no report", "an older report"])
@pytest.mark.covers("CONF-6")
def test_an_interrupt_before_anything_was_run(tmp_path: Path, before: str | None) -> None:
    """There is no report to go on with, or it is of another run."""
    target, path, begun = tmp_path / "slow.py", tmp_path / "r.json", tmp_path / "begun"
    target.write_text(
        f"open({str(begun)!r}, 'w').close()\nimport time\ntime.sleep(60)\ndef f(query, key, value): ..."
    )
    if before:
        path.write_text(before)
    process = subprocess.Popen(
        [sys.executable, "-m", "conformance", "run", f"{target}:f", "--report", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    late = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < late:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "mha-conformance: interrupted; nothing was run yet"
    assert (path.read_text() if path.exists() else None) == before
    assert not beside(path).exists()


# A folder that is gone


@pytest.mark.turns(4)
@posix
@pytest.mark.parametrize(
    "arguments",
    [["run", "numpy"], ["run", "{target}:good"], ["run", "x.py:f"], ["run", "numpy", "--report", "r.json"],
     ["run", "numpy", "--in-process"], ["run", "--command", "cat"], ["report", "r.json"], ["init", "a.py"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.covers("CONF-6")
def test_a_start_in_a_folder_that_is_gone(target: Path, tmp_path: Path, arguments: list[str]) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    call = ["-P", "-m", "conformance", *(word.format(target=target) for word in arguments)]
    script = (
        "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *call],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.endswith("the current folder is no longer there: change to one that is\n")


@posix
def test_a_target_that_removes_its_folder(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    report = conformance.run(f"{target}:homeless", fresh="off", no_diagnose=True)
    assert report.summary["crash"] == 3
    assert "exited with status 3" in report.results[0].message
    for row in report.results[1:]:
        assert row.message.startswith("it could not be started again: the current folder is no longer there")
