"""Memory of one call, in a fresh process: how far the resident size rises above what it was before."""

import contextlib
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
PEAK = "5"
"""What resets the peak of the resident size."""


def extra_memory(run: Callable[[], Any], warm: Callable[[], Any]) -> int | None:
    """The bytes that a call takes beyond what is held before it, its output included; None where unknown.

    `warm` is a small call of the same kind, so that what a library loads once is not counted.
    """
    warm()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what is free but held would be taken again unseen
    with contextlib.suppress(OSError):
        CLEAR.write_text(PEAK)
    before = _resident("VmRSS")
    kept = run()
    peak = _resident("VmHWM")
    del kept
    return None if before is None or peak is None else max(0, peak - before)


def _resident(field: str) -> int | None:
    """A size that Linux tells of this process; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    with contextlib.suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
