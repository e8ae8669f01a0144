"""The conformance suite: golden vectors, a runner for targets of any language, a judge, and reports."""

from typing import TYPE_CHECKING, Any

from conformance.version import SUITE_VERSION

if TYPE_CHECKING:  # a worker imports this package on every start, and needs neither
    from conformance.telling.exploration import explore
    from conformance.telling.report import Report
    from conformance.telling.run import run

__all__ = ["Report", "__version__", "explore", "run"]

__version__ = SUITE_VERSION


def __getattr__(name: str) -> Any:
    if name == "explore":
        from conformance.telling.exploration import explore

        return explore
    if name in ("Report", "run"):
        from conformance.telling import report, run

        return report.Report if name == "Report" else run.run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
