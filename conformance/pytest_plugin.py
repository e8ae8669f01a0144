"""The suite as tests of pytest: `pytest --mha-target TARGET`, or one line in a test file.

Loaded in every pytest run where the suite is installed, so it imports nothing of it before it is asked to.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.telling.pytest_summary import GROUP, Closing

if TYPE_CHECKING:
    from conformance.running.messages import Question
    from conformance.running.session import Session

__all__ = ["cases", "explore"]

ARGUMENT = "mha_question"
WANTED = "_mha_wanted"
OPTIONS = {
    "op": ("NAME", "test this operation only; also the operation of a function with another name"),
    "device": ("DEV", "device on which the arrays are made"),
    "accuracy": ("POLICY", "tolerance policy, in place of the one that the target declares"),
    "profile": ("NAME", "test a profile; fails if any of its features is missing or wrong"),
    "baseline": ("FILE", "known failures, each with its reason; they are reported as xfail"),
}
SEVERAL = {
    "dtype": ("D", "test this dtype only (repeatable)"),
    "feature": ("F", "only cases that need this feature (repeatable)"),
}
Sessions = dict[tuple[Any, ...], "Session"]
SESSIONS = pytest.StashKey[Sessions]()


def cases(target: Any = None, **options: Any) -> Callable[..., None]:
    """A test with one item for each case and dtype of a target.

    In a test file: `test_attention = conformance.pytest_plugin.cases("my_module:attention")`.

    `target` and `options` are those of `conformance.run`: `command`, `profile`, `op`, `dtype`, `device`,
    `accuracy`, `k`, `feature`, `timeout`, `in_process`, `baseline`.
    A file is looked up from where pytest was started, and next to the test file.
    """

    def test(mha_question: Any, request: pytest.FixtureRequest) -> None:
        session, question = mha_question
        _check(session, question, request.node)

    setattr(test, WANTED, (target, options))
    return test


def explore(
    target: Any = None, *, seconds: float = 20.0, seed: int | None = None, **options: Any
) -> Callable[..., None]:
    """A test that draws fresh calls of what a target claims, and fails with each smallest call that fails.

    In a test file: `test_fresh = conformance.pytest_plugin.explore("my_module:attention", seconds=20)`.

    `options` are the others of `conformance.explore`. With `seed=None` each run draws other calls; the seed stands
    in the message. A file is looked up from where pytest was started, and next to the test file.
    """

    def test(request: pytest.FixtureRequest) -> None:
        __tracebackhide__ = True
        from conformance.api.explore import explore as explored
        from conformance.errors import UsageError
        from conformance.telling.failure_message import failure_text

        try:
            report = explored(_beside(target, request.path), seconds=seconds, seed=seed, **options)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        if not report.executed:
            pytest.fail("nothing was executed: the target supports none of the drawn calls", pytrace=False)
        if report.failed:
            pytest.fail(failure_text(report), pytrace=False)

    return test


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the command line."""
    group = parser.getgroup("mha-conformance", "conformance of multi-head attention")
    group.addoption(
        "--mha-target",
        metavar="TARGET",
        help="collect every case and dtype that this target supports, as mha::CASE[DTYPE]",
    )
    group.addoption(
        "--mha-command",
        metavar="PROGRAM",
        help="test a program that speaks the line protocol, in place of a target",
    )
    group.addoption(
        "--mha-timeout", metavar="SECONDS", type=float, help="time limit per test, as run --timeout"
    )
    group.addoption(
        "--mha-no-diagnose",
        action="store_true",
        help="do not look for known mistakes that explain the failures",
    )
    for name, (metavar, text) in OPTIONS.items():
        group.addoption(f"--mha-{name}", metavar=metavar, help=text)
    for name, (metavar, text) in SEVERAL.items():
        group.addoption(f"--mha-{name}", metavar=metavar, action="append", default=[], help=text)


def pytest_configure(config: pytest.Config) -> None:
    """The marker of every item."""
    config.addinivalue_line("markers", "mha: a case of the conformance suite of multi-head attention")
    sessions: Sessions = {}
    config.stash[SESSIONS] = sessions
    config.pluginmanager.register(Closing(sessions, not config.getoption("mha_no_diagnose")), "mha-closing")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends every target."""
    for session in config.stash.get(SESSIONS, {}).values():
        session.close()


# Items of the command line


class Cases(pytest.Collector):
    """The parent of the items of --mha-target."""

    def collect(self) -> Iterable["CaseItem"]:
        """One item for each question, in the order that restarts the target least."""
        session = _session(self.config, **_options(self.config))
        for question in session.questions:
            name = f"{question.case.id}[{question.dtype}]"
            yield CaseItem.from_parent(self, name=name, question=question, asked=session)


class CaseItem(pytest.Item):
    """One case in one dtype."""

    def __init__(self, *, question: "Question", asked: "Session", **more: Any) -> None:
        super().__init__(**more)
        self._question, self._asked = question, asked
        _describe(self, question)

    def runtest(self) -> None:
        """Asks the target."""
        _check(self._asked, self._question, self)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the item stands: in no file."""
        return self.config.rootpath / GROUP, None, self.name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Adds the items of --mha-target before -k and -m choose, and tells those of test files by requirement."""
    for item in items:
        if ARGUMENT in getattr(getattr(item, "callspec", None), "params", {}):
            _describe(item, item.callspec.params[ARGUMENT][1])  # type: ignore[attr-defined]
    if config.getoption("mha_target") or config.getoption("mha_command"):
        parent = Cases.from_parent(session, name=GROUP, nodeid=GROUP, path=config.rootpath)
        found = _collected(parent)
        items += found
        session.ihook.pytest_collectreport(report=pytest.CollectReport(GROUP, "passed", None, [*found]))


def _collected(parent: Cases) -> list[CaseItem]:
    from conformance.errors import UsageError

    try:
        return list(parent.collect())
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _options(config: pytest.Config) -> dict[str, Any]:
    given = {
        name: config.getoption(f"mha_{name}") for name in ("target", "command", "timeout", *OPTIONS, *SEVERAL)
    }
    return {name: value for name, value in given.items() if value not in (None, [])}


# Items of test files


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes the items of a test that `cases` has made."""
    wanted = getattr(metafunc.function, WANTED, None)
    if wanted is None:
        return
    from conformance.errors import UsageError

    target, options = wanted
    try:
        session = _session(metafunc.config, target=_found(target, metafunc), **options)
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from error
    metafunc.parametrize(
        ARGUMENT,
        [pytest.param((session, q), id=f"{q.case.id}-{q.dtype}") for q in session.questions],
    )


def _found(target: Any, metafunc: pytest.Metafunc) -> Any:
    return _beside(target, metafunc.definition.path)


def _beside(target: Any, test: Path) -> Any:
    """A target whose file is next to the test file rather than where pytest was started."""
    if not isinstance(target, str):
        return target
    file, suffix, attribute = target.partition(".py")
    beside = test.parent / f"{file}{suffix}"
    return (
        f"{beside}{attribute}" if suffix and not Path(f"{file}.py").exists() and beside.exists() else target
    )


# Both


def _session(config: pytest.Config, *, target: Any = None, baseline: Any = None, **options: Any) -> "Session":
    """The session of a target with its options: one for each in this process."""
    key = (target if isinstance(target, str) else id(target), str(baseline), repr(sorted(options.items())))
    sessions = config.stash[SESSIONS]
    if key not in sessions:
        from conformance.running.baseline import read_baseline
        from conformance.running.request import Request
        from conformance.running.session import Session
        from conformance.vectors.load import load_vectors

        request = Request.of(target, path=_own_path(), **options)
        if baseline is not None:
            request = replace(request, baseline=read_baseline(Path(baseline)))
        sessions[key] = Session(request, load_vectors().cases)
    return sessions[key]


def _own_path() -> tuple[str, ...]:
    """The folders from which tests import what is not installed, so that a target in another process can."""
    installed = (sys.prefix, sys.base_prefix)
    return tuple(
        p for p in map(os.path.abspath, sys.path) if Path(p).is_dir() and not p.startswith(installed)
    )


def _describe(item: pytest.Item, question: "Question") -> None:
    """What -m and -k choose by, in addition to the name: requirements, features, the operation."""
    case = question.case
    item.add_marker(GROUP)
    item.extra_keyword_matches.update((*case.covers, *case.features, case.operation))
    item.user_properties.append((GROUP, " ".join(case.covers)))  # JUnit keeps them


def _check(session: "Session", question: "Question", item: pytest.Item) -> None:
    """Asks, and fails or skips as the row says."""
    __tracebackhide__ = True
    from conformance.telling.failure_message import assertion

    row = session.row(question)
    if not row.executed:
        pytest.skip(f"unsupported: {row.message}")
    if row.verdict == "xfail" and row.known is not None:
        pytest.xfail(f"{row.known.reason}: {row.message}")
    if row.unexpected:
        if session.heard:
            item.add_report_section("call", "stderr of the target", session.heard)
        pytest.fail(assertion(question.case, row), pytrace=False)
