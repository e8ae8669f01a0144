from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.judging.verdict import Known, Row
from conformance.telling.alike import alike

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
