"""What a pytest run of the suite ends with: whether anything was executed, the baseline's flaws, the diagnosis.

Loaded in every pytest run, so it imports nothing of the suite before there is something to tell.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conformance.running.session import Session

GROUP = "mha"
"""The marker of an item, and the name under which workers of pytest-xdist send what they found."""


class Closing:
    """A plugin of one pytest process; what workers found is told by the process that they belong to."""

    def __init__(self, sessions: Mapping[Any, "Session"], diagnose: bool) -> None:
        self._sessions, self._diagnose = sessions, diagnose
        self._asked = self._executed = 0
        self._problems: list[str] = []
        self._diagnosis: list[str] = []

    @property
    def _nothing(self) -> bool:
        """A run whose every case is unsupported does not count as passed (CONF-7)."""
        return self._asked > 0 and not self._executed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts the cases, and those that the target gave a result for."""
        if report.when == "call" and any(name == GROUP for name, _ in report.user_properties):
            self._asked += 1
            self._executed += not report.skipped or hasattr(report, "wasxfail")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes in what a worker of pytest-xdist found."""
        problems, diagnosis = getattr(node, "workeroutput", {}).get(GROUP, ((), ()))
        self._take(problems, diagnosis)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Looks at what was answered, and fails a run that shows nothing or whose baseline is not true."""
        for asked in self._sessions.values():
            self._take(asked.problems(), _diagnosis(asked) if self._diagnose else ())
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[GROUP] = (self._problems, self._diagnosis)
        elif (self._nothing or self._problems) and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _take(self, problems: Any, diagnosis: Any) -> None:
        self._problems += [line for line in problems if line not in self._problems]
        self._diagnosis += [line for line in diagnosis if line not in self._diagnosis]

    # quoted, since the oldest pytest that is admitted does not name it
    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Tells it."""
        for line in self._diagnosis:
            terminalreporter.write_line(f"mha: diagnosis: {line}")
        for line in self._problems:
            terminalreporter.write_line(f"mha: {line}", red=True)
        if self._nothing:
            terminalreporter.write_line(
                f"mha: nothing was executed: the target supports none of {self._asked} cases", red=True
            )


def _diagnosis(asked: "Session") -> list[str]:
    """Which known mistakes explain what failed, in sentences; not asked where the baseline knows all of it."""
    if not any(row.failed and row.unexpected for row in asked.rows):
        return []
    from conformance.diagnosis.search import diagnose
    from conformance.telling.diagnosis import diagnosis_lines

    return diagnosis_lines(diagnose(asked.rows, asked.cases, asked.accuracy))
