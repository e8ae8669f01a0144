"""The signals that end a run as Ctrl-C does."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")
"""What a scheduler sends, and what a terminal sends that closes."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt at the first signal, so that the run is told; those that follow do nothing."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which alone may listen
        yield
        return
    heard = []
    for name in NAMES:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # `nohup` stays as it is
            signal.signal(number, interrupt)
            heard.append(number)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error came up while an interrupt was dealt with: the terminal is gone, or `tee` ended first."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
