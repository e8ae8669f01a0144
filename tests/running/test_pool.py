"""Several workers: every row comes, whatever one of them does, and no process stays behind."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.running import pool, process, subprocess_target
from conformance.running.events import Started
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.vectors.case import Case

Make = Callable[..., Case]

POOLED = """
import os, pathlib, signal, time
import numpy as np

folder = pathlib.Path(__file__).parent
here = folder / f"pid-{os.getpid()}"
here.touch()
calls = 0

class Attention:
    dtypes = ("float32",)

    def scaled_dot_product_attention(self, query, key, value, *, scale=None):
        return {name: getattr(self, name)(query, key, value) for name in ["output"]}

    def output(self, query, key, value):
        raise ValueError(str(os.getpid()))

class Hanging(Attention):
    def output(self, query, key, value):
        if query.ndim == 4:
            time.sleep(60)
        return super().output(query, key, value)

class Dying(Attention):
    def output(self, query, key, value):
        if query.ndim == 4:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().output(query, key, value)

class Slow(Attention):
    def output(self, query, key, value):
        time.sleep(0.05)
        return super().output(query, key, value)

class Waiting(Attention):
    def output(self, query, key, value):
        late = time.monotonic() + 20
        while len(list(folder.glob("pid-*"))) < 2 and time.monotonic() < late:
            time.sleep(0.01)
        time.sleep(0.05)
        return super().output(query, key, value)

class Endless(Attention):
    def output(self, query, key, value):
        time.sleep(60)
"""
ONCE = """
lock = folder / "lock"
try:
    lock.mkdir()
except FileExistsError:
    raise RuntimeError("only one of me may be")
"""


@pytest.fixture(autouse=True)
def _no_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_target, "FIRST_CASE_SECONDS", 10.0)


@pytest.fixture
def pooled(tmp_path: Path) -> Path:
    path = tmp_path / "pooled.py"
    path.write_text(POOLED)
    return path


def rows(target: str, *cases: Case, **request: object) -> list[Row]:
    request = {"selection": Selection(dtypes=("float32",)), "workers": 2, **request}
    started, *rest = run(Request(target=target, **request), cases)  # type: ignore[arg-type]
    assert isinstance(started, Started)
    return rest  # type: ignore[return-value]


def alive(folder: Path) -> list[int]:
    """The processes of a target that still run."""
    pids = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and not _zombie(pid)]


def _zombie(pid: int) -> bool:
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


def several(make: Make, number: int = 12) -> list[Case]:
    return [make(f"a/{index:02}") for index in range(number)]


def test_two_workers_share_the_work(pooled: Path, make_case: Make) -> None:
    found = rows(f"{pooled}:Waiting", *several(make_case, 40))
    assert sorted(row.case for row in found) == [f"a/{index:02}" for index in range(40)]
    assert len({row.message.split(" ")[1] for row in found}) == 2, "two processes"
    assert alive(pooled.parent) == []


def test_no_more_workers_than_questions(pooled: Path, make_case: Make) -> None:
    assert len(rows(f"{pooled}:Attention", *several(make_case, 2), workers=8)) == 2
    assert len(list(pooled.parent.glob("pid-*"))) <= 2


@pytest.mark.parametrize(
    ("name", "verdict", "message"),
    [("Hanging", "timeout", "no answer within"), ("Dying", "crash", "the process died of signal SIGSEGV")],
)
def test_one_that_fails_stops_no_other(
    pooled: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch, name: str, verdict: str, message: str
) -> None:
    monkeypatch.setattr(subprocess_target, "FIRST_CASE_SECONDS", 1.0)
    cases = several(make_case)
    cases[3] = make_case("a/03", inputs={n: x[None] for n, x in cases[3].inputs.items()}, expected={})
    found = {row.case: row for row in rows(f"{pooled}:{name}", *cases, timeout=0.5)}
    assert len(found) == 12
    assert (found["a/03"].verdict, message in found["a/03"].message) == (verdict, True)
    assert {row.verdict for case, row in found.items() if case != "a/03"} == {"error"}
    assert alive(pooled.parent) == []


def test_one_that_cannot_be_started_leaves_the_work_to_the_others(pooled: Path, make_case: Make) -> None:
    pooled.write_text(POOLED + ONCE)
    found = rows(f"{pooled}:Slow", *several(make_case), workers=3)
    assert len(found) == 12
    assert {row.verdict for row in found} == {"error"}, "nothing of it is told as a crash"


def test_the_last_one_that_cannot_be_started_says_so(pooled: Path, make_case: Make) -> None:
    pooled.write_text(POOLED + ONCE)
    cases = [
        make_case(f"a/{i}", inputs={n: x[None] for n, x in make_case().inputs.items()}, expected={})
        for i in range(4)
    ]
    found = rows(f"{pooled}:Dying", *cases)
    assert {row.verdict for row in found} == {"crash"}
    assert sum("could not be started" in row.message for row in found) == 3


def test_stops_at_the_first_failure(pooled: Path, make_case: Make) -> None:
    began = time.monotonic()
    found = rows(f"{pooled}:Slow", *several(make_case, 30), stop_at_failure=True)
    assert len(found) == 1
    assert alive(pooled.parent) == []
    assert time.monotonic() - began < 15


def test_whoever_stops_to_listen_leaves_nothing_behind(pooled: Path, make_case: Make) -> None:
    request = Request(target=f"{pooled}:Endless", selection=Selection(dtypes=("float32",)), workers=2)
    began = time.monotonic()
    with closing(run(request, several(make_case))) as events:  # type: ignore[type-var]
        next(events)
    assert alive(pooled.parent) == []
    assert time.monotonic() - began < 15


def test_isolated_dtypes_do_not_share_a_process(tmp_path: Path, make_case: Make) -> None:
    path = tmp_path / "pooled.py"
    path.write_text(POOLED.replace('dtypes = ("float32",)', 'dtypes = ("float64", "float32", "float16")'))
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from dataclasses import replace\n"
        "from conformance.running import worker\n"
        "load = worker.load\n"
        "def isolating(*a):\n"
        "    target = load(*a)\n"
        "    return replace(target, hello=replace(target.hello, isolate=('float64',)))\n"
        "worker.load = isolating\n"
        f"sys.exit(worker.main([{f'{path}:Attention'!r}]))\n"
    )
    request = Request(command=(sys.executable, str(program)), workers=2)
    _, *found = run(request, several(make_case, 6))
    pids: dict[str, set[str]] = {}
    for row in found:
        assert isinstance(row, Row)
        pids.setdefault(row.dtype, set()).add(row.message.split(" ")[1])
    assert not pids["float64"] & (pids["float32"] | pids["float16"])
    assert len(found) == 18


def test_a_fault_of_the_suite_s_own_is_raised_and_nothing_stays(
    pooled: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("conformance.running.runner.judge", broken)
    pooled.write_text(POOLED.replace("raise ValueError(str(os.getpid()))", "return query"))
    with pytest.raises(ZeroDivisionError):
        rows(f"{pooled}:Attention", *several(make_case))
    assert alive(pooled.parent) == []


def test_nothing_is_started_after_the_end(pooled: Path) -> None:
    worker = subprocess_target.Isolated(process.worker_command(f"{pooled}:Attention", None, None), "x", 1.0)
    worker.kill()
    with pytest.raises(UsageError, match="x was ended"):
        worker.start()
    assert not list(pooled.parent.glob("pid-*"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"target": "numpy", "workers": 0}, "-j must be 1 or more workers, got 0"),
        ({"target": "numpy", "workers": 2, "in_process": True}, "goes neither with --in-process"),
        ({"target": print, "workers": 2}, "nor with a Python object"),
    ],
)
def test_requests_that_make_no_sense(request_: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Request(**request_)  # type: ignore[arg-type]


def test_the_pool_is_what_several_workers_use(
    pooled: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(pool.Pool, "__init__", lambda self, workers, answered: made.append(len(workers)))
    monkeypatch.setattr(pool.Pool, "rows", lambda self, questions: iter(()))
    rows(f"{pooled}:Attention", *several(make_case, 4), workers=3)
    rows(f"{pooled}:Attention", *several(make_case, 2), workers=1)
    assert made == [3]
