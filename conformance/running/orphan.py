"""A process ends when the suite that started it does, however that came about: nothing busy is left behind."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 1.0

LAUNCHER = f"""
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
try:
    ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)
except (OSError, AttributeError):
    pass
if os.getppid() != parent:
    sys.exit(1)
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
except OSError:
    pass
for name in ("SIGPIPE", "SIGXFSZ"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"cannot start {{command[0]!r}}: {{error.strerror}}")
"""
"""Becomes the command, which the kernel then ends with its parent, and first of all where memory runs out.

Python's own signal handling is undone.
"""


def launched(command: Sequence[str]) -> list[str]:
    """A command that on Linux ends with this process; elsewhere the end of its input has to tell it."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command]


def end_with_parent() -> None:
    """Ends this process once its parent has ended, where the kernel does not do it: a thread looks."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
