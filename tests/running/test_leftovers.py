"""That nothing a target has started outlives it, however it was detached, and that nobody waits for it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from conformance.running import keeper
from conformance.running.process import DiedError, Process, TimedOutError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process can leave its group unseen"
)

DETACHED = """
import os, pathlib, signal, sys, time

def detach(*, closing=False, deaf=False, folder=None):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if folder:
        os.chdir(folder)
    if closing:
        os.closerange(0, 256)
    if deaf:
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN)
    pathlib.Path(PLACE + ".new").write_text(str(os.getpid()))
    os.rename(PLACE + ".new", PLACE)
    time.sleep(120)
    os._exit(0)

def ready():
    while not os.path.exists(PLACE):
        time.sleep(0.01)
    print("ready", flush=True)

"""
ANSWERING = "sys.stdin.readline(); ready()\nsys.stdin.readline()"
WAYS = {
    "holding the pipes": f"detach()\n{ANSWERING}",
    "closing the pipes": f"detach(closing=True)\n{ANSWERING}",
    "deaf to signals": f"detach(deaf=True)\n{ANSWERING}",
    "from another folder": f"detach(folder='/')\n{ANSWERING}",
    "deaf itself": f"detach(deaf=True)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ANSWERING}",
}


def gone(process: int) -> bool:
    """Whether a process has ended, within a while."""
    late = time.monotonic() + 10
    while time.monotonic() < late:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    return False


def program(place: Path, code: str) -> list[str]:
    return [sys.executable, "-c", f"PLACE = {str(place)!r}\n{DETACHED}\n{code}"]


@pytest.mark.parametrize("way", WAYS)
def test_a_detached_process_ends_with_the_target(way: str, tmp_path: Path) -> None:
    place = tmp_path / "pid"
    process = Process(program(place, WAYS[way]))
    assert process.ask(b"go\n", 30) == b"ready\n"
    assert process.stop(b"stop\n") == ""
    assert gone(int(place.read_text()))
    assert not any(thread.is_alive() for thread in process._threads)


def test_a_detached_process_ends_with_a_target_that_hangs(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    process = Process(program(place, f"detach()\n{ANSWERING}\ntime.sleep(120)"))
    assert process.ask(b"go\n", 30) == b"ready\n"
    with pytest.raises(TimedOutError):
        process.ask(b"go\n", 0.1)
    process.kill()
    assert gone(int(place.read_text()))


def test_a_swarm_that_goes_on_forking_ends_with_the_target(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    swarm = """
if not os.fork():
    os.setsid()
    for _ in range(20):
        if not os.fork():
            late = time.monotonic() + 60
            while time.monotonic() < late:  # each is soon another process
                if os.fork():
                    os._exit(0)
                time.sleep(0.01)
    os._exit(0)
"""
    process = Process(program(place, f"{swarm}\ndetach()\n{ANSWERING}"))
    assert process.ask(b"go\n", 30) == b"ready\n"
    mark = process._mark
    process.stop(b"stop\n")
    assert gone(int(place.read_text()))
    assert keeper.marked(mark.encode()) == []


def test_a_target_that_stops_itself_times_out() -> None:
    process = Process([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    with pytest.raises(TimedOutError):
        process.ask(b"go\n", 0.5)
    process.kill()
    assert not process.alive


def test_a_stopped_child_ends_with_the_target(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    stopped = (
        "child = os.fork()\nif not child:\n    time.sleep(120)\nos.kill(child, signal.SIGSTOP)\n"
        "pathlib.Path(PLACE).write_text(str(child))\n"
    )
    process = Process(program(place, f"{stopped}{ANSWERING}"))
    assert process.ask(b"go\n", 30) == b"ready\n"
    process.stop(b"stop\n")
    assert gone(int(place.read_text()))


def test_a_target_that_dies_leaves_nobody_who_holds_its_pipe(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    process = Process(program(place, "detach(deaf=True)\nsys.stdin.readline(); ready()\nos._exit(7)"))
    assert process.ask(b"go\n", 30) == b"ready\n"
    with pytest.raises(DiedError, match="exited with status 7"):
        process.ask(b"go\n", 30)
    assert gone(int(place.read_text()))


def test_a_target_that_stops_or_ends_its_keeper_leaves_nothing(tmp_path: Path) -> None:
    for number, name in ((signal.SIGSTOP, "stopped"), (signal.SIGTERM, "ended"), (signal.SIGKILL, "killed")):
        place = tmp_path / name
        code = (
            f"detach()\nsys.stdin.readline(); ready()\nos.kill(os.getppid(), {int(number)})\ntime.sleep(120)"
        )
        process = Process(program(place, code))
        assert process.ask(b"go\n", 30) == b"ready\n"
        process.kill()
        assert gone(int(place.read_text()))
        assert not process.alive


def test_the_last_words_are_those_of_the_target() -> None:
    process = Process([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"])
    with pytest.raises(DiedError, match="died of signal SIGABRT"):
        process.ask(b"go\n", 30)


def test_a_target_that_closes_its_output_and_goes_on_is_told_so() -> None:
    code = "import os, time\nos.close(1)\ntime.sleep(120)"
    process = Process([sys.executable, "-c", code])
    with pytest.raises(DiedError, match="closed its output, and was ended"):
        process.ask(b"go\n", 30)
    assert not process.alive
