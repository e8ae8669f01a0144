"""What the judge says of one answer, and the row that a report keeps of it."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "fail", "error", "crash", "timeout", "unsupported", "xfail", "xpass"]

VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "error", "crash", "timeout", "unsupported", "xfail", "xpass")
FAILURES: tuple[Verdict, ...] = ("fail", "error", "crash", "timeout")
"""What a failing row got; a baseline that knows it makes an xfail of it."""

Grade = Literal["fused", "eager"]


@dataclass(frozen=True)
class Worst:
    """The element that uses most of what it may err; the index is in the whole output."""

    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float


@dataclass(frozen=True)
class Got:
    """One output of a wrong answer, as it stands in a report."""

    output: str
    dtype: str
    shape: tuple[int, ...]
    data: str  # base64 of the little-endian bytes in C order


@dataclass(frozen=True)
class Diagnosis:
    """A known defect, and how many of the failing rows that it could show in it reproduces."""

    defect: str  # its ID in the bank
    explains: int
    of: int


@dataclass(frozen=True)
class Known:
    """What a row came to before the baseline looked at it, and what the baseline says of it."""

    verdict: Verdict
    reason: str
    report: str = ""  # where it is reported; empty where nobody has


@dataclass(frozen=True)
class Judgement:
    """The judge's word on an answer that holds outputs."""

    verdict: Literal["pass", "fail"]
    message: str = ""
    error_over_bound: float | None = None  # max |err| / allowed
    rms_over_sigma: float | None = None  # largest RMS(err / s) of the outputs that obey rule 2
    grade: Grade | None = None  # the strictest unreduced policy that a passing answer meets
    worst: Worst | None = None


@dataclass(frozen=True)
class Row:
    """One (case, dtype) of a run."""

    case: str
    operation: str
    dtype: str
    verdict: Verdict
    covers: tuple[str, ...]
    features: tuple[str, ...]
    message: str = ""
    error_over_bound: float | None = None
    rms_over_sigma: float | None = None
    grade: Grade | None = None
    worst: Worst | None = None
    seconds: float = 0.0
    got: tuple[Got, ...] = ()  # of a failing row; empty elsewhere, and where too much
    got_left_out: str = ""  # why it is not there
    diagnosis: tuple[Diagnosis, ...] = ()
    known: Known | None = None  # of an xfail or an xpass
    reduced: str = ""  # the smallest call that fails like a drawn one, in a line
    fails_if: str = ""  # what it takes to fail, and what it does not depend on
    replay: str = ""  # the token that asks it once more

    @property
    def chapter(self) -> str:
        """The part of the case ID before the slash."""
        return self.case.split("/", 1)[0]

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from every other row of a run."""
        return self.case, self.dtype

    @property
    def judged(self) -> Verdict:
        """The verdict as it is without a baseline."""
        return self.known.verdict if self.known else self.verdict

    @property
    def failed(self) -> bool:
        """Whether this row makes the target non-conformant, in the baseline or not."""
        return self.judged in FAILURES

    @property
    def passed(self) -> bool:
        """Whether every result of it is right."""
        return self.judged == "pass"

    @property
    def unexpected(self) -> bool:
        """Whether this row fails the run: a failure that no baseline knows, or a pass against it."""
        return self.verdict in FAILURES or self.verdict == "xpass"

    @property
    def executed(self) -> bool:
        """Whether the target gave a result, right or wrong."""
        return self.verdict != "unsupported"
