"""A worker ends when whoever started it does, however that came about: a killed suite leaves nothing busy."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 1.0


def end_with_parent() -> None:
    """Ends this process once its parent has ended.

    Linux sends the signal even to a loop that lets no other thread run; elsewhere a thread looks.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
