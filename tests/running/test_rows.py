"""A row holds what the case is, what the answer was and what the judge said of it; how many workers there are."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.judging.judge import judge
from conformance.judging.verdict import Row
from conformance.names import MHA, SDPA
from conformance.running import runner
from conformance.running.messages import Answer, Question
from conformance.running.process import worker_command
from conformance.running.protocol import WRITE_ONE
from conformance.running.request import Request
from conformance.running.runner import answered_once
from conformance.running.select import Selection
from conformance.running.subprocess_target import Isolated
from conformance.running.target import adopt
from conformance.vectors.case import Case

Make = Callable[..., Case]


class Answering:
    """Gives one answer to whatever it is asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def ask(self, question: Question) -> Answer:
        return self.answer

    def kill(self) -> None: ...

    def close(self) -> str:
        return ""


@pytest.mark.parametrize("off", [0.0, 1e-5, 1.0])
def test_a_row_of_outputs(make_case: Make, make_golden: Any, off: float) -> None:
    exact = np.linspace(0.0, 1.0, 24).reshape(2, 3, 4)
    case = make_case(
        expected={"output": make_golden(exact, rms_applies=True, worst=1e-4, rms=2e-5)},
        covers=("ATT-1", "ATT-2"), features=("gqa",),
    )  # fmt: skip
    outputs = {"output": (exact + off).astype(np.float32)}
    row = answered_once(
        Question(case, "float32"), "eager", Answering(Answer("outputs", outputs=outputs, seconds=2.5))
    )
    said = judge(case, "float32", "eager", outputs)
    assert said.verdict == ("fail" if off == 1.0 else "pass")
    assert (row.case, row.operation, row.dtype) == (case.id, case.operation, "float32")
    assert (row.covers, row.features, row.seconds) == (case.covers, case.features, 2.5)
    assert (row.verdict, row.message, row.grade) == (said.verdict, said.message, said.grade)
    assert (row.error_over_bound, row.rms_over_sigma) == (said.error_over_bound, said.rms_over_sigma)
    assert row.worst == said.worst
    assert None not in (row.error_over_bound, row.rms_over_sigma, row.worst)
    assert [got.output for got in row.got] == (["output"] if off == 1.0 else [])


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("wrong", "fail"),
        ("error", "error"),
        ("crash", "crash"),
        ("timeout", "timeout"),
        ("unsupported", "unsupported"),
    ],
)
def test_a_row_without_outputs(make_case: Make, kind: Any, verdict: str) -> None:
    for case in (make_case(), make_case(raises=True)):
        row = answered_once(
            Question(case, "float32"), "eager", Answering(Answer(kind, "no luck", seconds=1.5))
        )
        assert row.verdict == ("pass" if case.raises and kind == "error" else verdict)
        assert (row.message, row.seconds, row.grade, row.got) == ("no luck", 1.5, None, ())


def test_what_is_not_claimed_is_not_asked(make_case: Make) -> None:
    row = answered_once(
        Question(make_case(), "float32", unclaimed="not that"), "eager", Answering(Answer("crash"))
    )
    assert (row.verdict, row.message) == ("unsupported", "not that")


@pytest.mark.parametrize(
    ("workers", "cases", "made"), [(1, 5, 0), (2, 5, 2), (3, 5, 3), (9, 4, 4), (4, 1, 0)]
)
def test_as_many_workers_as_are_asked_for_and_have_a_question(
    make_case: Make, monkeypatch: pytest.MonkeyPatch, workers: int, cases: int, made: int
) -> None:
    """None of them starts here; a single one needs no pool."""
    seen: list[int] = []

    class Counting:
        def __init__(self, all_of_them: Sequence[Isolated], answered: Any) -> None:
            seen.append(len(all_of_them))

        def rows(self, questions: Sequence[Question]) -> Iterator[Row]:
            return iter(())

    def attention(query: Any, key: Any, value: Any) -> Any: ...

    first = Isolated(["true"], "x", 1.0)
    monkeypatch.setattr(first, "ask", lambda question: Answer("crash"))
    monkeypatch.setattr(runner, "Pool", Counting)
    monkeypatch.setattr(runner, "start", lambda request, echo: (first, adopt(attention, "x").hello))
    request = Request(target="x", workers=workers)
    list(runner.run(request, [make_case(f"core/n{i}") for i in range(cases)]))
    assert seen == ([made] if made else [])


def test_one_that_was_never_started_says_nothing_at_its_end() -> None:
    assert Isolated(["true"], "x", 1.0).close() == ""


def test_a_worker_is_told_what_the_request_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Isolated", lambda *given: given)
    request = Request(
        target="x.py:y", selection=Selection(operation=MHA), device="cpu", timeout=5.0, path=("here",)
    )
    command = worker_command("x.py:y", MHA, "cpu", ("here",))
    assert {"--op", MHA, "--device", "cpu", "--path", "here", "x.py:y"} < set(command)
    assert runner.isolated(request, print) == (command, "x.py:y", 5.0, print, "")  # type: ignore[comparison-overlap]
    request = Request(command=("node", "impl.js"), timeout=7.0)
    assert runner.isolated(request, None) == (("node", "impl.js"), "node impl.js", 7.0, None, WRITE_ONE)  # type: ignore[comparison-overlap]


def layer(query: Any, key: Any, value: Any, *, w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any: ...


@pytest.mark.parametrize("named", [True, False])
def test_a_target_of_this_process_is_told_what_the_request_says(tmp_path: Path, named: bool) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def layer(query, key, value, *, w_q, w_k, w_v, w_o): ...")
    target = {"target": f"{path}:layer", "in_process": True} if named else {"target": layer}
    source = f"{path}:layer" if named else "layer"
    _, hello = runner.start(Request(selection=Selection(operation=MHA), **target), None)
    assert hello.operations == (MHA,)
    with pytest.raises(
        UsageError, match=re.escape(f"{source} ({SDPA}): the parameter 'w_q' needs a default value")
    ):
        runner.start(Request(**target), None)
    with pytest.raises(UsageError, match="numpy makes no array on device 'cuda'"):
        runner.start(Request(selection=Selection(operation=MHA), device="cuda", **target), None)
