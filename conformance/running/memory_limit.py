"""How much memory a target's process may take, so that one which allocates without end ends alone."""

from pathlib import Path

SHARE = 0.8
"""Which part of the memory that is free at its start a process may take."""
PAGE = 4096
CGROUP = Path("/sys/fs/cgroup")


def allowance() -> float:
    """Bytes that a process may take from now on; without limit where the system does not tell."""
    return SHARE * free()


def free() -> float:
    """Bytes of memory that nobody holds; without limit where the system does not tell."""
    return min(_free(), _free_in_group())


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it is gone, or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _free() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return float("inf")


def _free_in_group() -> float:
    """What the container has left, if it is one with a limit."""
    try:
        most, used = (int((CGROUP / f"memory.{what}").read_text()) for what in ("max", "current"))
        return float(most - used)
    except (OSError, ValueError):  # no such file, or "max"
        return float("inf")
