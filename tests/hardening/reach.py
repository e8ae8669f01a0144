"""For `nox -s mutation`: which tests reach what runs only in a target's process.

mutmut notes what a test calls in its own process. What a worker does is reached by every test that starts
one.
"""

import os
from typing import Any

import pytest

STARTS = "conformance.running.isolated.xǁIsolatedǁstart"
IN_THE_WORKER = (
    "conformance.running.worker.x_main",
    "conformance.running.worker.x__take_over_streams",
    "conformance.running.worker.x_serve",
    "conformance.running.worker.x__start",
    "conformance.running.worker.x__run",
    "conformance.running.orphan.x_end_with_parent",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Notes it before mutmut does."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        from mutmut.state import state  # no dependency of any other session

        reached: set[Any] = state()._stats
        if STARTS in reached:
            reached.update(IN_THE_WORKER)
