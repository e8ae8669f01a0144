"""Targets that misbehave, each in a process of its own: every one gets its verdict, and the run goes on."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.running import process, subprocess_target
from conformance.running.events import Started
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.vectors.case import Case

Make = Callable[..., Case]


@pytest.fixture(autouse=True)
def _no_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_target, "FIRST_CASE_SECONDS", 10.0)


def rows(target: str, *cases: Case, **request: object) -> list[Row]:
    request = {"selection": Selection(dtypes=("float32",)), **request}
    started, *rest = run(Request(target=target, **request), cases)  # type: ignore[arg-type]
    assert isinstance(started, Started)
    assert all(isinstance(row, Row) for row in rest)
    return rest  # type: ignore[return-value]


VERDICTS = {
    "good": ("pass", ""),
    "by_position": ("pass", ""),
    "printing": ("pass", ""),
    "reading": ("pass", ""),
    "noisy": ("pass", ""),
    "instance": ("pass", ""),
    "Attention": ("pass", ""),
    "wrong": ("fail", "output["),
    "none": ("fail", "returned None"),
    "generator": ("fail", "output is a generator"),
    "transposed": ("fail", "output has shape (2, 4, 3), wanted (2, 3, 4) (SHAPE-2)"),
    "widened": ("fail", "output has dtype float64, wanted float32 (DTYPE-1)"),
    "listing": ("fail", "output: returned a list, wanted an array; NumPy reads it as float64 (DTYPE-1)"),
    "complex_": ("fail", "output has dtype complex64"),
    "triple": ("fail", "returned a tuple of 3 (an array of float32"),
    "writing": ("fail", "key was written to during the call (IND-5)"),
    "raising": ("error", "ValueError: no luck at all (raised in your file, fakes.py:"),
    "exiting": ("error", "SystemExit: 3"),
    "refusing": ("unsupported", "not today"),
    "ragged": ("fail", "output is a list that cannot be read"),
    "silencing": ("error", "MuteError"),
    "closing": ("error", "MuteError"),
    "interrupting": ("error", "KeyboardInterrupt"),
}


NOT_HERE = ("printing", "reading", "silencing", "closing", "interrupting")
"""They would do it to the process that runs the tests."""


@pytest.mark.parametrize("name", [name for name in VERDICTS if name not in NOT_HERE])
@pytest.mark.covers("IND-5", "SHAPE-2", "DTYPE-1")
def test_verdicts_in_process(targets: Path, make_case: Make, name: str) -> None:
    verdict, message = VERDICTS[name]
    (row,) = rows(f"{targets}:{name}", make_case(), in_process=True)
    assert (row.verdict, row.message[: len(message)]) == (verdict, message)


@pytest.mark.parametrize("name", [*NOT_HERE, "noisy", "raising", "writing", "complex_", "ragged"])
@pytest.mark.covers("PROTO-6", "IND-5")
def test_verdicts_isolated(targets: Path, make_case: Make, name: str) -> None:
    verdict, message = VERDICTS[name]
    (row,) = rows(f"{targets}:{name}", make_case())
    assert (row.verdict, row.message[: len(message)]) == (verdict, message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dying", "the process exited with status 3; its last line was: last words"),
        ("segfaulting", "the process died of signal SIGSEGV"),
    ],
)
def test_crash_and_on(targets: Path, make_case: Make, name: str, message: str) -> None:
    first, second = rows(f"{targets}:{name}", make_case("a/a"), make_case("a/b"))
    assert (first.verdict, first.message) == ("crash", message)
    assert second.verdict == "crash"


def test_timeout_and_on(targets: Path, make_case: Make) -> None:
    first, second, third = rows(
        f"{targets}:hanging", make_case("a/a"), make_case("a/b"), make_case("a/c"), timeout=0.5
    )
    assert [row.verdict for row in (first, second, third)] == ["pass", "timeout", "pass"]
    assert second.message == "no answer within 0.5 s"
    assert 0.4 < second.seconds < 5
    assert third.seconds < 0.4, "the start of a process is not the case's time"


@pytest.mark.covers("CONF-4")
def test_unclaimed_is_listed_and_not_run(targets: Path, make_case: Make) -> None:
    (row,) = rows(f"{targets}:raising", make_case(features=("softcap",), options={"softcap": 2.0}))
    assert (row.verdict, row.message) == ("unsupported", "does not support softcap")


def test_validation_passes_on_any_exception_but_not_implemented(targets: Path, make_case: Make) -> None:
    case = make_case(raises=True)
    verdicts = {
        name: rows(f"{targets}:{name}", case, in_process=True)[0].verdict
        for name in ("raising", "exiting", "good", "refusing", "none", "ragged", "writing")
    }
    assert verdicts == {
        "raising": "pass",
        "exiting": "pass",
        "good": "fail",
        "refusing": "unsupported",
        "none": "fail",
        "ragged": "fail",
        "writing": "fail",
    }


@pytest.mark.covers("IND-4")
def test_repeat_judges_the_last_call(targets: Path, make_case: Make) -> None:
    assert rows(f"{targets}:growing", make_case(repeat=2), in_process=True)[0].verdict == "fail"
    assert rows(f"{targets}:growing", make_case(), in_process=True)[0].verdict == "pass"
    assert rows(f"{targets}:growing", make_case(repeat=2))[0].verdict == "fail"


def test_stops_at_the_first_failure(targets: Path, make_case: Make) -> None:
    assert len(rows(f"{targets}:wrong", make_case("a/a"), make_case("a/b"), stop_at_failure=True)) == 1


def test_a_python_object(make_case: Make) -> None:
    def attention(query: object, key: object, value: object) -> object:
        return query

    (row,) = rows(attention, make_case())  # type: ignore[arg-type]
    assert row.verdict == "fail"


def test_accuracy_replaces_the_target_s(targets: Path, make_case: Make) -> None:
    started = next(
        iter(run(Request(target=f"{targets}:good", accuracy="fused", in_process=True), [make_case()]))
    )
    assert isinstance(started, Started)
    assert started.accuracy == "fused"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "give either a TARGET or --command"),
        ({"target": "a.mjs", "command": ("node",)}, "PROGRAM and not both: is it --command 'node a.mjs'"),
        ({"command": ("x",), "in_process": True}, "--in-process runs Python targets only"),
        ({"command": ("x",), "device": "cpu"}, "--device is for Python targets"),
        ({"target": "numpy", "accuracy": "tf23"}, "unknown accuracy 'tf23'; did you mean 'tf32'?"),
        ({"target": "numpy", "timeout": 0.0}, "--timeout must be more than 0"),
        ({"target": "numpy", "timeout": float("nan")}, "--timeout must be more than 0"),
    ],
)
def test_requests_that_make_no_sense(request_: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        Request(**request_)  # type: ignore[arg-type]


PROGRAM = """
import json, sys
behaviour = sys.argv[1]
for line in sys.stdin:
    message = json.loads(line)
    if message["cmd"] == "start":
        print(json.dumps({"name": "p", "version": None, "dtypes": ["float32"], "features": ["%s"],
                          "operations": ["scaled_dot_product_attention"], "accuracy": "eager"}), flush=True)
    elif message["cmd"] == "run":
        answers = {
            "value": {"id": message["id"], "outputs": {"output": message["inputs"]["value"]}},
            "error": {"id": message["id"], "error": "cannot"},
            "unknown": {"id": message["id"], "unsupported": "no", "why": "because"},
            "other": {"id": "other", "unsupported": "no"},
            "short": {"id": message["id"], "outputs": {"output": {"dtype": "float32", "shape": [9], "data": "AAAA"}}},
        }
        if behaviour.startswith("shape"):
            shape = json.loads(behaviour[6:])
            entry = {"dtype": "float32", "shape": shape, "data": "" if 0 in shape else "A" * 32}
            answers[behaviour] = {"id": message["id"], "outputs": {"output": entry}}
        print(json.dumps(answers[behaviour]) if behaviour in answers else behaviour, flush=True)
    else:
        break
"""


@pytest.mark.parametrize(
    ("behaviour", "verdict", "message"),
    [
        ("value", "fail", "output["),
        ("error", "error", "cannot"),
        (
            "unknown",
            "fail",
            "invalid reply: Additional properties are not allowed ('why' was",
        ),
        ("other", "fail", "invalid reply: id: got 'other', wanted 'core/plain'"),
        ("short", "fail", "invalid reply: output has 3 bytes of data, wanted 36"),
        *(
            (f"shape {shape}", "fail", "invalid reply: ")
            for shape in ([1.0, 3.0, 2.0], [1] * 70, [0, 10**30], [0, 2**62, 2**62])
        ),
        ("debug print", "fail", "invalid reply: 'debug print' is not a line of JSON"),
    ],
)
@pytest.mark.covers("PROTO-1", "PROTO-4", "PROTO-6")
def test_programs(tmp_path: Path, make_case: Make, behaviour: str, verdict: str, message: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM % "scale")
    _, row = run(Request(command=(sys.executable, str(program), behaviour)), [make_case()])
    assert isinstance(row, Row)
    assert (row.verdict, row.message[: len(message)]) == (verdict, message)


def test_no_answer_ends_a_run(tmp_path: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(line: bytes, case_id: str) -> None:
        raise ZeroDivisionError

    program = tmp_path / "program.py"
    program.write_text(PROGRAM % "scale")
    monkeypatch.setattr(subprocess_target, "parse_answer", failing)
    _, *found = run(
        Request(command=(sys.executable, str(program), "value")), [make_case("a/a"), make_case("a/b")]
    )
    assert [row.message for row in found if isinstance(row, Row)] == [
        "the answer cannot be read: ZeroDivisionError"
    ] * 2


def test_the_first_case_of_each_process_has_an_allowance(
    targets: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    ask = process.Process.ask

    def noted(self: process.Process, line: bytes, timeout: float) -> bytes:
        asked.append(timeout)
        return ask(self, line, timeout)

    monkeypatch.setattr(process.Process, "ask", noted)
    rows(f"{targets}:good", make_case("a/a"), make_case("a/b"), timeout=7.0)
    assert asked == [120.0, 17.0, 7.0]
    asked.clear()
    rows(f"{targets}:dying", make_case("a/a"), make_case("a/b"), timeout=7.0)
    assert asked == [120.0, 17.0, 120.0, 17.0]


def test_notes_come_with_the_start(tmp_path: Path, make_case: Make) -> None:
    path = tmp_path / "noted.py"
    path.write_text("def attention(query, key, value, attn_mask=None): return value")
    started, *_ = run(Request(target=f"{path}:attention"), [make_case()])
    assert isinstance(started, Started)
    (note,) = started.hello.notes
    assert (
        "attn_mask is not a parameter that the suite knows, so it is not tested; rename it to mask or attn_bias"
        in note
    )


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (PROGRAM % "sofcap", "unknown name in the features of .* 'sofcap'; did you mean 'softcap'"),
        (
            "print('hello', flush=True); input()",
            "sent an invalid reply to `start`: 'hello'.*: `mha-conformance init",
        ),
        (
            "raise SystemExit('no GPU')",
            "did not start: the process exited with status 1; its last line was: no GPU",
        ),
        (
            "pass",
            "did not start: the process exited with status 0; it has to answer each line with one line of JSON",
        ),
        ('print(\'{"error": "protocol 1 is too old"}\')', "protocol 1 is too old"),
        ('print(\'{"name": "x"}\')', "'version' is a required property"),
    ],
)
@pytest.mark.covers("PROTO-2", "PROTO-6")
def test_programs_that_do_not_start(tmp_path: Path, make_case: Make, program: str, message: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    with pytest.raises(UsageError, match=message):
        list(run(Request(command=(sys.executable, str(path), "value")), [make_case()]))


def test_a_program_that_is_not_there(make_case: Make) -> None:
    with pytest.raises(UsageError, match="cannot start 'no-such-program': No such file"):
        list(run(Request(command=("no-such-program",)), [make_case()]))


def test_a_program_that_never_reads_blocks_nothing(
    tmp_path: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    reply = (
        '{"name": "p", "version": null, "dtypes": ["float32"], "features": [], '
        '"operations": ["scaled_dot_product_attention"], "accuracy": "eager"}'
    )
    path.write_text(f"import sys, time\nsys.stdin.readline()\nprint({reply!r}, flush=True)\ntime.sleep(60)\n")
    big = {name: np.zeros((1, 512, 512), np.float32) for name in ("query", "key", "value")}
    case = make_case(inputs=big, expected={})
    monkeypatch.setattr(subprocess_target, "FIRST_CASE_SECONDS", 0.0)
    _, row = run(Request(command=(sys.executable, str(path)), timeout=0.5), [case])
    assert isinstance(row, Row)
    assert row.verdict == "timeout"


def test_a_process_that_cannot_be_started_again(tmp_path: Path, targets: Path, make_case: Make) -> None:
    flag = tmp_path / "once"
    text = targets.read_text().replace(
        "calls = 0",
        f"import pathlib\nflag = pathlib.Path({str(flag)!r})\nassert not flag.exists()\nflag.touch()",
    )
    targets.write_text(text)
    first, second, third = rows(f"{targets}:dying", make_case("a/a"), make_case("a/b"), make_case("a/c"))
    assert first.message.startswith("the process exited")
    assert second.verdict == third.verdict == "crash"
    assert second.message.startswith("it could not be started again: cannot import")


def test_isolated_dtypes_get_their_own_process(tmp_path: Path, make_case: Make) -> None:
    path = tmp_path / "program.py"
    text = PROGRAM % "scale"
    text = text.replace('"dtypes": ["float32"]', '"dtypes": ["float32", "float64"], "isolate": ["float64"]')
    text = text.replace("answers = {", 'answers = {"pid": {"id": message["id"], "error": str(os.getpid())},')
    path.write_text(text.replace("import json", "import os, json"))
    _, *found = run(Request(command=(sys.executable, str(path), "pid")), [make_case("a/a"), make_case("a/b")])
    pids: dict[str, set[str]] = {"float32": set(), "float64": set()}
    for row in found:
        assert isinstance(row, Row)
        pids[row.dtype].add(row.message)
    assert [len(p) for p in pids.values()] == [1, 1]
    assert pids["float32"] != pids["float64"]


TALKING = """
import json, sys
hello = {"name": "t", "version": None, "dtypes": ["float32"], "features": [], "accuracy": "eager",
         "operations": ["scaled_dot_product_attention"]}
for line in sys.stdin:
    message = json.loads(line)
    answer = {"id": message.get("id"), "error": "it must be refused"} if message["cmd"] == "run" else hello
    if message["cmd"] != "stop":
        print(json.dumps(answer), flush=True)
    if message["cmd"] == WHEN:
        print("and more", flush=True)
"""


@pytest.mark.parametrize("when", ["run", "stop"])
@pytest.mark.covers("PROTO-1", "PROTO-6")
def test_what_is_said_after_the_last_answer_is_the_fault_of_the_last_case(make_case: Make, when: str) -> None:
    command = (sys.executable, "-c", TALKING.replace("WHEN", repr(when)))
    asked = make_case("validation/a", raises=True)
    unclaimed = make_case("validation/b", raises=True, features=("validation",))
    last, after = rows(None, asked, unclaimed, command=command)  # type: ignore[arg-type]
    assert last.verdict == "fail"
    assert "more than one line to its last question, or a line to stop (PROTO-1): 'and more'" in last.message
    assert after.verdict == "unsupported", "which was never asked"
