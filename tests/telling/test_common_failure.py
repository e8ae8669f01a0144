"""What most failures have in common, a dtype without a kernel, a feature that seems to be lacking."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance.judging.verdict import Known, Row
from conformance.running.messages import Hello
from conformance.telling.common_failure import alike, dead_lines
from conformance.telling.progress import RunProgress
from conformance.telling.summary import assumed, by_operation

TENSORS = '; it got NumPy arrays: for tensors say array_type = "torch"'


def row(message: str, verdict: str = "error", measured: float | None = None) -> Row:
    return Row("a/b", "o", "float32", verdict, (), (), message, error_over_bound=measured)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("messages", "count"),
    [
        ([f"TypeError: {n} is no Tensor{TENSORS}" for n in ("a", "b", "c")], 3),
        ([f"ValueError: operand {n}{TENSORS}" for n in (1, 2, 3)] + ["x"] * 2, 3),
        (["output has shape (2, 3), wanted (3, 2)", "output has shape (4, 1, 5), wanted (4, 5, 1)"] * 2, 4),
    ],
)
def test_one_remedy_is_told_once(messages: list[str], count: int) -> None:
    told = alike([*map(row, messages), row("", "pass", 0.5), row("", "unsupported")])
    assert told == f"most frequent: {messages[0]} ({count} of {len(messages)} failures)"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row("a")] * 2,
        [row("a")] * 3 + [row("b")] * 2 + [row("c")] * 2,
        [row("output[0] is 1, wanted 2", "fail", 9.0)] * 5,
        [Row("a/b", "o", "float32", "xfail", (), (), "a", known=Known("error", "known"))] * 5,
    ],
)
def test_what_can_be_read_one_by_one_is_not(rows: list[Row]) -> None:
    assert alike(rows) == ""


def test_the_run_says_it(tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "nothing.py"
    path.write_text("def attention(query, key, value): pass")
    status, out, _ = command("run", f"{path}:attention", "-k", "heads", "--no-diagnose")
    assert status == 1
    assert "most frequent: returned None, wanted an array (" in out


def dead(dtype: str, count: int) -> list[Row]:
    raised = [f"RuntimeError: no kernel for Half at {n}" for n in range(count)]
    return [Row(f"a/c{n}", "o", dtype, "error", (), (), text) for n, text in enumerate(raised)]


def test_a_dtype_without_a_kernel_is_one_line() -> None:
    rows = [*dead("float16", 4), *([row("", "pass", 0.5)] * 2)]
    (line,) = dead_lines(rows)
    assert line == (
        "float16: all 4 tests raise, first RuntimeError: no kernel for Half at 0; "
        "if there is no kernel for float16, leave it out of `dtypes`"
    )
    assert alike(rows) == "", "it is said already"
    assert dead_lines(dead("float16", 4)) == [], "nothing runs at all: that is no question of a dtype"
    assert dead_lines([*dead("float16", 2), row("", "pass", 0.5)]) == []
    some = [*dead("float16", 3), Row("a/d", "o", "float16", "fail", (), ()), row("", "pass", 0.5)]
    assert dead_lines(some) == []


def test_the_same_exception_is_shown_twice_for_a_dtype() -> None:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=200, markup=False)) as progress:
        for each in [*dead("float16", 6), *dead("float32", 1)]:
            progress.show(each)
    shown = [line for line in out.getvalue().splitlines() if line.startswith("error")]
    assert [line.split()[1:3] for line in shown] == [
        ["a/c0", "float16"],
        ["a/c1", "float16"],
        ["a/c0", "float32"],
    ]
    assert "... and 4 more; -v shows them all, --report keeps them" in out.getvalue()


def test_a_feature_that_seems_to_be_lacking_is_said() -> None:
    hello = Hello("x", None, ("float32",), ("gqa", "empty"), ("o",), "eager", assumed=("gqa", "empty"))

    def of(feature: str, verdict: Any, count: int) -> list[Row]:
        return [Row(f"{feature}/{n}", "o", "float32", verdict, (), (feature,)) for n in range(count)]

    plain, broken = (
        [Row("p/p", "o", "float32", "pass", (), ())] * 9,
        [Row("q/q", "o", "float32", "fail", (), ())],
    )
    said = (
        "every test of gqa fails, which is assumed to be supported, since the target declares no features; "
        'if it is not, write features = {"empty"} in its file'
    )
    assert assumed([*of("gqa", "fail", 4), *of("empty", "pass", 4), *plain, *broken], hello) == said
    assert assumed([*of("gqa", "fail", 2), *plain, *broken], hello) == "", "too few"
    assert assumed([*of("gqa", "fail", 4), *broken * 9], hello) == "", "everything fails"
    assert assumed([*of("gqa", "fail", 3), *of("gqa", "pass", 1), *plain, *broken], hello) == ""


def test_the_tests_of_each_operation_are_counted() -> None:
    def of(operation: str, verdict: Any, count: int) -> list[Row]:
        return [Row(f"a/{n}", operation, "float32", verdict, (), ()) for n in range(count)]

    hello = Hello("x", None, ("float32",), (), ("o", "p"), "eager")
    rows = [*of("o", "pass", 4), *of("p", "pass", 2), *of("p", "fail", 1), *of("p", "unsupported", 5)]
    assert by_operation(rows, hello) == "tests by operation: o 4, p 3 (1 failed)"
    one = Hello("x", None, ("float32",), (), ("o",), "eager")
    assert by_operation(of("o", "pass", 4), one) == "", "one operation has all of them"
