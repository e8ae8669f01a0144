"""The conformance suite: golden vectors, a runner for targets of any language, a judge, and reports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformance.version import SUITE_VERSION

if TYPE_CHECKING:  # a worker imports this package on every start, and needs none of it
    from conformance.api.explore import explore
    from conformance.api.run import run
    from conformance.oracle.asserting import Expected, assert_conforms, expected
    from conformance.telling.report import Report

__all__ = ["Expected", "Report", "__version__", "assert_conforms", "expected", "explore", "run"]

__version__ = SUITE_VERSION

_PLACES = {
    "Expected": "conformance.oracle.asserting",
    "Report": "conformance.telling.report",
    "assert_conforms": "conformance.oracle.asserting",
    "expected": "conformance.oracle.asserting",
    "explore": "conformance.api.explore",
    "run": "conformance.api.run",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
