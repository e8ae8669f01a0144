"""Programs that a target's library has compiled, which it keeps for ever: a run has a shape a case."""

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any

from conformance.running.memory_limit import resident

MOST = 2**30
"""Bytes of memory from which on they are dropped."""
STEP = 2**28
"""Bytes by which the process has to grow before they are dropped again: it may hold as much for other reasons."""


class Compiled:
    """What JAX keeps in this process, if the target has imported it."""

    def __init__(self, most: int = MOST, step: int = STEP) -> None:
        self._bound, self._step = most, step

    def drop(self) -> bool:
        """Has the library drop its programs where the process has become large; whether it did."""
        library: Any = sys.modules.get("jax")
        clear = getattr(library, "clear_caches", None)
        if clear is None or resident(os.getpid()) < self._bound:
            return False
        clear()
        with suppress(Exception):  # a C library that keeps what is freed for itself; others give it back
            ctypes.CDLL(None).malloc_trim(0)
        self._bound = max(self._bound, resident(os.getpid()) + self._step)
        return True
