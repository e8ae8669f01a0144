"""How many examples the tests here look at: few by default, DEEP times as many where HARDENING says so."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

DEEP = int(os.environ.get("HARDENING", "1"))


def examples(number: int) -> Any:
    """Settings of a test: so many examples, times the depth; the same ones each time unless it goes deep."""
    return settings(
        max_examples=number * DEEP,
        deadline=None,
        derandomize=DEEP == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
