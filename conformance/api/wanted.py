"""What is to be explored, and what an exploration writes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conformance.api.run import FilePath, fresh_seed, page_text
from conformance.errors import UsageError
from conformance.exploring.large import call
from conformance.exploring.recipe import read_token
from conformance.exploring.search import Budget
from conformance.exploring.sizes import SIZES
from conformance.running.suggestions import known
from conformance.telling.atomic_file import OutFile
from conformance.telling.junit import junit as junit_text
from conformance.telling.recorder import text as report_text
from conformance.telling.report import Report
from conformance.telling.terminal import shorten

SECONDS = 60.0
FAILURES = 5
SEED_WANTED = "--seed wants a whole number from 0 on, of at most 18 digits"


@dataclass(frozen=True)
class Wanted:
    """What is to be explored, in addition to the target."""

    seconds: float = SECONDS
    cases: int | None = None
    seed: int = 0
    size: str = "kernel"
    memory: float | None = None  # GiB
    max_failures: int = FAILURES
    stop: bool = False
    save: Path | None = None
    replay: str | None = None
    diagnose: bool = True

    def __post_init__(self) -> None:
        known("size", self.size, SIZES)
        if not self.seconds > 0:
            raise UsageError(f"--seconds must be more than 0, got {self.seconds:g}")
        for name, number in (("cases", self.cases), ("max-failures", self.max_failures)):
            if number is not None and number < 1:
                raise UsageError(f"--{name} must be 1 or more, got {number}")
        if self.memory is not None and not self.large:
            raise UsageError(f"--memory goes with --size large, not with {self.size}: leave it out")
        if self.memory is not None and not self.memory > 0:
            raise UsageError(f"--memory must be more than 0 GiB, got {self.memory:g}")
        if self.save is not None and self.large:
            raise UsageError("--save keeps calls of small and kernel size: one of --size large is its token")
        if self.replay is not None:
            call.read_token(self.replay) if call.is_token(self.replay) else read_token(self.replay)

    @property
    def large(self) -> bool:
        """Whether calls have production size; a token says it itself."""
        return call.is_token(self.replay) if self.replay is not None else self.size == "large"

    @property
    def budget(self) -> Budget:
        """When to stop."""
        seconds = self.seconds if self.cases is None or self.seconds != SECONDS else float("inf")
        return Budget(seconds, self.cases, 1 if self.stop else self.max_failures)


@dataclass(frozen=True)
class Outputs:
    """What an exploration writes."""

    report: FilePath | None = None
    junit: FilePath | None = None
    html: FilePath | None = None

    def files(self) -> list[tuple[OutFile, Callable[[Report], str]]]:
        """The files, found to be writable, with what makes their text."""
        return [
            (OutFile(Path(path), what), make)
            for path, what, make in (
                (self.report, "report", report_text),
                (self.junit, "JUnit file", junit_text),
                (self.html, "page", page_text),
            )
            if path is not None
        ]


def drawn_seed(seed: int | str | None) -> int:
    """The seed that is given, or a new one.

    Raises:
        UsageError: it is no whole number from 0 to 10**18 - 1.
    """
    try:
        found = fresh_seed(seed)
    except UsageError as error:
        raise UsageError(f"{SEED_WANTED}, got {shorten(str(seed))!r}") from error
    if found is None:
        raise UsageError(f"{SEED_WANTED}, got 'off'")
    return found
