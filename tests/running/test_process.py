"""The child process: its surroundings, its stderr, and that nothing of it stays behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.running.messages import Question
from conformance.running.parent_watch import launched
from conformance.running.process import THREADS, DiedError, Process, TimedOutError, environment, split_command
from conformance.running.protocol import ProtocolError, encode, run_message
from conformance.vectors.case import Case


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
    with pytest.raises(
        DiedError, match=r"exited with status 7; its last lines were: x+... / the end"
    ) as caught:
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


def test_a_second_answer_is_refused_before_the_next_question() -> None:
    process = Process(python("import sys\nfor line in sys.stdin: print('one\\ntwo', flush=True)"))
    assert process.ask(b"\n", 20) == b"one\n"
    time.sleep(0.1)
    with pytest.raises(ProtocolError, match=r"more than one line to the question before this one .*'two'"):
        process.ask(b"\n", 20)
    process.kill()


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.running.process.ANSWER_BYTES", 2**20)
    process = Process(python("import sys\nwhile True: sys.stdout.write('x' * 65536)"))
    with pytest.raises(ProtocolError, match="more than 1 MiB is too long"):
        process.ask(b"\n", 20)
    process.kill()
    assert not any(thread.is_alive() for thread in process._threads)


def test_a_death_is_seen_though_a_child_holds_the_pipes() -> None:
    code = "import os, time\nif os.fork():\n    os._exit(3)\ntime.sleep(60)"
    process = Process(python(code))
    began = time.monotonic()
    with pytest.raises(DiedError, match="exited with status 3"):
        process.ask(b"\n", 60)
    assert time.monotonic() - began < 20


def test_last_lines_of_what_never_answered() -> None:
    code = "import sys; sys.exit('\\n'.join(f'line {i}' for i in range(9)))"
    with pytest.raises(DiedError, match=r"its last lines were: line 4 / line 5 / line 6 / line 7 / line 8$"):
        Process(python(code)).ask(b"\n", 20)


def test_the_error_above_the_last_lines_is_told() -> None:
    code = "import sys; sys.exit('Error: no such module\\n' + '\\n'.join(f'at {i}' for i in range(9)))"
    with pytest.raises(DiedError, match=r"its last lines were: Error: no such module / at 4 / at 5 / "):
        Process(python(code)).ask(b"\n", 20)


def test_the_last_error_far_above_the_last_lines_is_told() -> None:
    lines = ["warned"] * 20 + ["Error: first", *["at"] * 9, "thread panicked: second", *["at"] * 9]
    with pytest.raises(DiedError, match=r"were: thread panicked: second / at / at / at / at / at$"):
        Process(python(f"import sys; sys.exit('\\n'.join({lines}))")).ask(b"\n", 20)


def test_whoever_cannot_be_told_blocks_nothing() -> None:
    def deaf(text: str) -> None:
        raise ValueError("closed")

    process = Process(python("import sys; sys.stderr.write('x' * 3000000); print('done')"), deaf)
    assert process.ask(b"\n", 20) == b"done\n"
    process.kill()


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x00 no program")
    with pytest.raises(UsageError, match=r"cannot start '.*program': No such file, or none that may be run"):
        Process([str(program)])
    program.chmod(0o755)
    with pytest.raises(DiedError, match=r"exited with status 1; its last line was: cannot start '.*program'"):
        Process([str(program)]).ask(b"\n", 20)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of its input tells a program")
def test_a_program_ends_with_a_suite_that_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    busy = f"import os; open({str(pid)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    code = f"from conformance.running.process import Process\nProcess({python(busy)!r}).ask(b'', 60)"
    parent = subprocess.Popen(python(code), env=environment(os.environ))
    _until(lambda: pid.exists() and pid.read_text() != "")
    parent.kill()
    parent.wait()
    _until(lambda: _gone(int(pid.read_text())))


BUSY = """
import re
def scaled_dot_product_attention(query, key, value):
    open(FILE, "w").write(str(__import__("os").getpid()))
    re.match("(a+)+$", "a" * 60 + "b")  # holds the GIL for ever
"""
PARENT = """
import sys
from conformance.running.process import Process, worker_command
from conformance.running.protocol import encode, start_message
process = Process(worker_command(sys.argv[1], None, None))
process.ask(encode(start_message()), 60)
process.ask(sys.stdin.buffer.readline(), 60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a loop that lets no thread run")
def test_a_busy_worker_ends_with_a_suite_that_is_killed(
    tmp_path: Path, make_case: Callable[..., Case]
) -> None:
    target, pid = tmp_path / "busy.py", tmp_path / "pid"
    target.write_text(f"FILE = {str(pid)!r}\n{BUSY}")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(target)], stdin=subprocess.PIPE, env=environment(os.environ)
    )
    assert parent.stdin is not None
    parent.stdin.write(encode(run_message(Question(make_case(), "float32"))))
    parent.stdin.flush()
    _until(lambda: pid.exists() and pid.read_text() != "")
    parent.kill()
    parent.wait()
    parent.stdin.close()
    _until(lambda: _gone(int(pid.read_text())))


def test_elsewhere_a_thread_ends_it() -> None:
    code = (
        "import os, sys, time\n"
        "if os.fork(): print(flush=True); time.sleep(1); os._exit(0)\n"
        "from conformance.running import parent_watch\n"
        "parent_watch.LOOK_SECONDS = 0.05\nparent_watch.end_with_parent()\n"
        "print(os.getpid(), flush=True)\ntime.sleep(60)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=environment(os.environ),
        check=True,
        timeout=30,
    )  # whose end means that nobody holds the pipe any more
    pid = int(process.stdout.split()[-1])
    _until(lambda: _gone(pid))


def _gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().split()[2] == "Z"
    except OSError:
        return True


def _until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        time.sleep(0.02)
    pytest.fail("it did not come true within 20 s")


@pytest.mark.skipif(sys.platform != "linux", reason="signals beyond those with names are Linux's")
@pytest.mark.parametrize(("number", "words"), [(11, "SIGSEGV"), (40, "40")])
def test_the_signal_that_it_died_of(number: int, words: str) -> None:
    process = Process(python(f"import os; os.kill(os.getpid(), {number})"))
    with pytest.raises(DiedError, match=rf"^the process died of signal {words}$"):
        process.ask(b"\n", 20)


def test_last_words_that_are_no_text() -> None:
    process = Process(python("import os, sys; os.write(2, b'not \\xff text'); sys.exit(4)"))
    with pytest.raises(DiedError, match=r"exited with status 4; its last line was: not \ufffd text$"):
        process.ask(b"\n", 20)


def test_what_a_process_writes_is_echoed_though_it_is_no_text() -> None:
    heard: list[str] = []
    process = Process(python("import os; os.write(2, b'not \\xff text')"), heard.append)
    with pytest.raises(DiedError):
        process.ask(b"\n", 20)
    assert "".join(heard) == "not \ufffd text"


def test_a_process_has_the_environment_that_was_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    process = Process(python("import os; print(os.environ['MKL_NUM_THREADS'], flush=True); input()"))
    assert process.ask(b"", 20) == b"1\n"
    process.kill()


def test_elsewhere_a_command_is_started_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert launched(("node", "impl.js")) == ["node", "impl.js"]
