"""What people read: safe text, tables, progress, requirements."""

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.events import Started
from conformance.running.messages import Hello
from conformance.telling.progress import RunProgress, row_text
from conformance.telling.report import Report, TargetInfo
from conformance.telling.requirements import named, read_requirements
from conformance.telling.table import cell, matrix_lines, matrix_table, run_table, summary_lines
from conformance.telling.terminal import WIDE, console, safe

EVIL = "\x1b[31mred\x07 [bold]markup[/bold] \u202eright\nline"


def row(verdict: Any, case: str = "mask/x", dtype: str = "float32", message: str = "") -> Row:
    return Row(case, SDPA, dtype, verdict, ("MASK-1",), (), message)


def report(*rows: Row, name: str = "x") -> Report:
    counts = {"pass": 1, "fail": 0, "error": 2}
    target = TargetInfo(name, "1", "x.py", "eager")
    return Report(
        "0", "1", "0" * 64, target, {}, (), "incomplete", counts, {}, {"core": "incomplete"}, (), rows
    )


def printed(thing: Any, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=terminal, markup=False, emoji=False).print(thing)
    return out.getvalue()


def test_safe_escapes_what_moves_the_cursor() -> None:
    assert safe(EVIL) == r"\x1b[31mred\x07 [bold]markup[/bold] \u202eright\nline"
    assert safe("é ∑ 漢") == "é ∑ 漢"


@pytest.mark.parametrize(
    ("columns", "width"),
    [(None, WIDE), ("80", 80), ("", WIDE), ("0", WIDE), ("x", WIDE), ("9" * 5000, WIDE), ("²", WIDE)],
)
def test_columns_when_piped(monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width


@pytest.mark.covers("CONF-4")
def test_cells_never_count_unsupported_as_pass() -> None:
    cells = {
        "2 pass": ["pass", "pass", "unsupported"],
        "1 of 3 failed": ["pass", "pass", "crash", "unsupported"],
        "unsupported": ["unsupported"],
        "": [],
    }
    assert [str(cell(row(verdict) for verdict in verdicts)) for verdicts in cells.values()] == list(cells)


def test_tables() -> None:
    rows = [row("pass"), row("fail", "heads/y"), row("pass", dtype="float64")]
    text = printed(run_table(report(*rows, name=EVIL)))
    assert "\x1b" not in text
    assert "[bold]markup[/bold]" in text
    header, heads, mask = (
        line for line in text.splitlines() if any(w in line for w in ("chapter", "heads", "mask "))
    )
    assert header.index("float64") < header.index("float32")
    assert "1 of 1 failed" in heads
    assert mask.count("1 pass") == 2
    many = printed(matrix_table([report(*rows), report(row("unsupported"), name="other")]))
    assert "heads" in many
    assert "unsupported" in many
    names = ("numpy", "torch-portable", "array-api-strict", "jax", "x" * 10_000_000)
    five = [report(*rows, name=name) for name in names]
    assert max(map(len, printed(matrix_table(five)).splitlines())) <= 80
    lines = list(map(str, matrix_lines(five)))
    assert lines[1] == "2 torch-portable 1 (eager): incomplete: 1 pass, 0 fail, 2 error"
    assert len(lines[4]) < 150


def test_summary_lines() -> None:
    assert [str(line) for line in summary_lines(report(row("pass")), "core")] == [
        "incomplete: 1 pass, 0 fail, 2 error",
        "profile core: incomplete",
    ]


HELLO = Started(Hello(EVIL, "1", (), (), (), "eager"), "x", "eager", 2)


def shown(terminal: bool = False, **how: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=200, force_terminal=terminal, markup=False, emoji=False, highlight=False
    )
    with RunProgress(console, **how) as progress:
        progress.show(HELLO)
        progress.show(row("pass"))
        progress.show(row("fail", message=EVIL))
        progress.echo("from the target\x1b[2J\n")
    return out.getvalue()


def test_progress_on_no_terminal() -> None:
    text = shown()
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4, "the start, the failure and its message, the echo"
    assert "fail    mask/x float32 (MASK-1 True may attend)\n        \\x1b[31mred" in text
    assert r"  | from the target\x1b[2J" in text


@pytest.mark.parametrize(("quiet", "told"), [(False, True), (True, False)])
def test_a_target_that_is_slow_to_start_is_said_to_be_waited_for(
    quiet: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.telling.progress.SLOW_START", 0.0)
    out = io.StringIO()
    with RunProgress(Console(file=out, width=200, markup=False), quiet) as progress:
        until = time.monotonic() + 10.0
        while told and not out.getvalue().endswith("\n") and time.monotonic() < until:
            time.sleep(0.001)
        progress.show(HELLO)
    assert (
        "waiting for the target to start and say what it is: it may take 120 s\n" in out.getvalue()
    ) == told
    out = io.StringIO()
    monkeypatch.setattr("conformance.telling.progress.SLOW_START", 0.05)
    with RunProgress(Console(file=out, width=200, markup=False), quiet) as progress:
        progress.show(HELLO)
        time.sleep(0.2)
    assert "waiting" not in out.getvalue()


def failing(rows: int, **how: bool) -> list[str]:
    out = io.StringIO()
    with RunProgress(Console(file=out, width=200, markup=False), **how) as progress:
        for number in range(rows):
            progress.show(row("fail", f"mask/{number}", message="wrong"))
    return out.getvalue().splitlines()


def test_progress_tells_the_first_failures_and_counts_the_others() -> None:
    lines = failing(104)
    assert lines[-1] == "... and 96 more; -v shows them all, --report keeps them"
    assert len(lines) == 2 * 8 + 1
    assert failing(104, report=False)[-1] == "... and 96 more; -v shows them all"
    assert failing(8)[-1] == "        wrong"
    assert len(failing(104, verbose=True)) == 2 * 104
    assert failing(104, quiet=True) == []


def test_progress_names_four_requirements_and_says_that_there_are_more() -> None:
    many = Row("a/b", SDPA, "float32", "fail", ("A-1", "A-2", "A-3", "A-4", "A-5"), (), "wrong")
    assert str(row_text(many)).splitlines()[0] == "fail    a/b float32 (A-1, A-2, A-3, A-4, ...)"


def test_progress_verbose_and_quiet() -> None:
    assert "pass        mask/x float32 (0.00 s)" in shown(verbose=True)
    assert "mask/x" not in shown(quiet=True)


def test_progress_on_a_terminal_never_lets_control_characters_through() -> None:
    text = shown(terminal=True)
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "\x1b[2J" not in text
    assert "2/2" in text


def test_requirements_of_the_specification() -> None:
    found = {requirement.id: requirement for requirement in read_requirements()}
    assert found["MASK-3"].title.startswith("A query that may attend nothing yields zeros")
    assert found["MASK-3"].notes[0] == "MUST"
    assert all(requirement.title and requirement.notes for requirement in found.values())
    ids = list(found)
    assert ids.index("MASK-2") < ids.index("MASK-10")
    assert found["MASK-3"].label == "MASK-3 fully masked rows"
    assert named("ATT-3") == "ATT-3 default scale"
    assert named("OLD-1") == "OLD-1", "a report of another version may name it"


def test_withdrawn_requirements(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A\n\n### OLD-1\n\n**It was so.** *Withdrawn in 1.1: see NEW-1.*\n\n### NEW-1\n\n**It is.** *MUST · core*\n"
    )
    new, old = read_requirements(tmp_path)
    assert (new.withdrawn, old.withdrawn) == (False, True)
    with pytest.raises(UsageError, match="no requirement is found"):
        read_requirements(tmp_path / "nowhere")
