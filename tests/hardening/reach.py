"""For `nox -s mutation`: which tests are asked about a function.

mutmut notes what a test calls in its own process; what each worker calls is reached by every test that starts one.
Where many tests reach a function the quickest are asked.
"""

import os
from itertools import accumulate
from typing import Any

import pytest

STARTS = "conformance.running.subprocess_target.xǁIsolatedǁstart"
IN_THE_WORKER = "conformance.running.parent_watch.x_end_with_parent"
SECONDS = 8.0
"""How long the tests that are asked about one function may take together."""


def stats() -> Any:
    """What mutmut has noted so far; None if it does not ask."""
    if os.environ.get("MUTANT_UNDER_TEST") != "stats":
        return None
    from mutmut.state import state  # no dependency of any other session

    return state()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Notes, before mutmut does, what a worker has called."""
    if (noted := stats()) and STARTS in noted._stats:
        noted._stats.add(IN_THE_WORKER)


def pytest_sessionfinish() -> None:
    """Leaves to each function the quickest tests."""
    if noted := stats():
        for function, tests in noted.tests_by_mangled_function_name.items():
            quick = sorted(tests, key=lambda test: noted.duration_by_test[test])
            until = accumulate(noted.duration_by_test[test] for test in quick)
            noted.tests_by_mangled_function_name[function] = {
                test for test, seconds in zip(quick, until, strict=True) if seconds <= SECONDS
            }
