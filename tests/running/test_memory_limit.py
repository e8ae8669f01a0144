"""How much memory a process may take: of what the machine, or the container, has left."""

import math
from pathlib import Path

import pytest

from conformance.running import memory_limit
from conformance.running.memory_limit import SHARE, allowance


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_limit, "CGROUP", tmp_path)
    monkeypatch.setattr(memory_limit, "_free", lambda: 1000.0)
    return tmp_path


@pytest.mark.parametrize(
    ("most", "used", "left"),
    [("500", "300", 200.0), ("5000", "300", 1000.0), ("max", "300", 1000.0), ("500", None, 1000.0)],
)
def test_the_smaller_of_what_machine_and_container_have_left(
    group: Path, most: str, used: str | None, left: float
) -> None:
    (group / "memory.max").write_text(f"{most}\n")
    if used is not None:
        (group / "memory.current").write_text(f"{used}\n")
    assert allowance() == SHARE * left


def test_without_limit_where_nobody_tells(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(memory_limit, "CGROUP", group)
    monkeypatch.setattr(memory_limit, "Path", lambda path: group / "absent")
    assert allowance() == math.inf
    assert memory_limit.resident(1) == 0


def test_what_the_system_says_is_available_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  500 kB\n")
    monkeypatch.setattr(memory_limit, "CGROUP", tmp_path)
    monkeypatch.setattr(memory_limit, "Path", lambda path: tmp_path / "meminfo")
    assert allowance() == SHARE * 500 * 1024
