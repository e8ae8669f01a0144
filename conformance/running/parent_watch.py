"""A process ends when the suite that started it does, however that came about: nothing busy is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

if sys.platform == "linux":  # elsewhere it cannot be imported
    from conformance.running import keeper

MARK = "MHA_CONFORMANCE_TARGET"
"""The variable of a target's environment by which what it has left is found, if it ended its keeper first."""
LOOK_SECONDS = 1.0
KEEPER_SECONDS = 2.0
"""How long a keeper may take to end what it keeps, before it is ended itself."""


def kept() -> bool:
    """Whether a command has a keeper here: where Linux is not, nobody is given what a process leaves behind."""
    return sys.platform == "linux"


def launched(command: Sequence[str]) -> list[str]:
    """A command that on Linux ends with this process; elsewhere the end of its input has to tell it."""
    if not kept():
        return list(command)
    return [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(os.getpid()), *command]


def processes(child: subprocess.Popen[bytes]) -> list[int]:
    """The command that was launched, and what it has left to its keeper."""
    return keeper.children(child.pid) if kept() else [child.pid]


def end(child: subprocess.Popen[bytes], mark: str) -> None:
    """Ends a launched command, and whatever it has started; `mark` is what MARK was set to for it."""
    if kept():
        with suppress(subprocess.TimeoutExpired):
            child.terminate()
            child.wait(KEEPER_SECONDS)
        while child.poll() is None:  # it was stopped, or is kept busy
            left = keeper.descendants(child.pid)
            keeper.end(left or [child.pid])
            time.sleep(keeper.AGAIN_SECONDS)
        if child.returncode == -signal.SIGKILL:  # it may be the keeper that died of it
            keeper.end(keeper.marked(f"{MARK}={mark}".encode()))
    elif hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # it and its children are gone
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def end_with_parent() -> None:
    """Ends this process once its parent has ended, where the kernel does not do it: a thread looks."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
