"""The child process: its surroundings, its stderr, and that nothing of it stays behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.running.process import THREADS, DiedError, Process, TimedOutError, environment, split_command


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_threads_are_pinned_unless_set() -> None:
    made = environment({"OMP_NUM_THREADS": "3", "PATH": "p"})
    assert {made[name] for name in THREADS if name != "OMP_NUM_THREADS"} == {"1"}
    assert (made["OMP_NUM_THREADS"], made["PATH"]) == ("3", "p")


def test_the_suite_is_importable() -> None:
    root = str(Path(__file__).resolve().parents[2])
    path = environment({"PYTHONPATH": "mine"})["PYTHONPATH"].split(os.pathsep)
    assert path[0] == "mine"
    assert root in path or "site-packages" in str(sys.modules["conformance"].__file__)


def test_much_stderr_neither_blocks_nor_is_kept() -> None:
    process = Process(python("import sys; sys.stderr.write('x' * 3000000 + '\\nthe end'); sys.exit(7)"))
    with pytest.raises(DiedError, match=r"exited with status 7; its last line was: the end") as caught:
        process.ask(b"\n", 20)
    assert len(str(caught.value)) < 500


def test_stderr_is_echoed() -> None:
    heard: list[str] = []
    process = Process(
        python("import sys; print('news', file=sys.stderr, flush=True); sys.exit()"), heard.append
    )
    with pytest.raises(DiedError):
        process.ask(b"\n", 20)
    assert "".join(heard) == "news\n"


def test_children_of_the_process_die_with_it() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)"
    )
    process = Process(python(code))
    grandchild = int(process.ask(b"\n", 20))
    with pytest.raises(TimedOutError):
        process.ask(b"\n", 0.05)
    process.kill()
    for _ in range(100):
        status = Path(f"/proc/{grandchild}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            break
        time.sleep(0.02)
    else:
        pytest.fail("a child of the process is still there")


@pytest.mark.covers("PROTO-7")
def test_stop_is_polite_and_then_not() -> None:
    polite = Process(python("import sys\nfor line in sys.stdin: sys.exit(0)"))
    polite.stop(b"stop\n")
    assert not polite.alive
    stubborn = Process(python("import time; time.sleep(60)"))
    stubborn.stop(b"stop\n", patience=0.1)
    assert not stubborn.alive


def test_split_command() -> None:
    assert split_command("node 'my impl.js' --x") == ("node", "my impl.js", "--x")
    assert split_command(None) == ()
    assert split_command(["a", "b"]) == ("a", "b")
    with pytest.raises(UsageError, match="No closing quotation"):
        split_command("node 'x")
    with pytest.raises(UsageError, match="--command is empty"):
        split_command("  ")
