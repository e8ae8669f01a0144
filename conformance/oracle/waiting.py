"""A word to whoever waits: what takes long says so, once, on stderr."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SECONDS = 4.0
"""What is done sooner says nothing."""


@contextmanager
def told(what: str, seconds: float = SECONDS) -> Iterator[None]:
    """Says on stderr what is being done, if it is not done after some seconds."""
    timer = threading.Timer(seconds, _say, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(what: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
        print(f"assert_conforms: {what}", file=sys.stderr, flush=True)
