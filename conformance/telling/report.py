"""The report of a run, as data and as the JSON of spec/schema/report.json."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from conformance.errors import UsageError
from conformance.judging.verdict import FAILURES, Row
from conformance.reading import TooLargeError, flaw, read_bytes, strict_json, validator
from conformance.resources import schema
from conformance.telling.row_json import row_from_json, row_to_json

REPORT_VERSION = 1
EXPLORE = "explore"
"""The mode of a report that tells of drawn calls."""

Status = Literal["conformant", "non-conformant", "incomplete"]


@dataclass(frozen=True)
class TargetInfo:
    """What was run."""

    name: str
    version: str | None
    source: str
    accuracy: str


@dataclass(frozen=True)
class FeatureResult:
    """How a feature fared: its status (also `not claimed`), and its rows."""

    status: str
    passed: int
    failed: int


@dataclass(frozen=True)
class BaselineResult:
    """The baseline of a run: its file, and what is wrong with it."""

    path: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """What an exploration has drawn."""

    seed: int
    drawn: int  # calls
    judged: int  # those of them for which an expected value was derived


@dataclass(frozen=True)
class Report:
    """Everything that a run has shown."""

    def __repr__(self) -> str:
        """One line; the fields hold the rest."""
        counts = ", ".join(f"{n} {verdict}" for verdict, n in self.summary.items() if n)
        return f"<Report of {self.target.source}: {self.status}: {counts}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, a bar, and the first failures."""
        from conformance.telling.notebook import report_html

        return report_html(self)

    suite_version: str
    spec_version: str
    vectors_sha256: str
    target: TargetInfo
    environment: Mapping[str, str]
    command: tuple[str, ...]
    status: Status
    summary: Mapping[str, int]  # verdict -> rows
    features: Mapping[str, FeatureResult]
    profiles: Mapping[str, Status]
    untested_requirements: tuple[str, ...]
    results: tuple[Row, ...]
    splits: tuple[Mapping[str, Any], ...] = ()  # conditions that tell failing rows from passing ones
    notes: tuple[
        Mapping[str, Any], ...
    ] = ()  # what the diagnosis says of failing rows without a known mistake
    options: Mapping[str, Any] | None = None  # which rows were asked, and how; None in reports of version 1.0
    baseline: BaselineResult | None = None
    asked: int | None = None  # rows that there are if the run goes to its end; None in reports of version 1.1
    drawing: Drawing | None = None  # of an exploration
    stopped: str = ""  # why the run gave up before its end; empty where it did not
    noticed: str = ""  # what an experiment found of wrong answers while the run went on; empty if nothing

    @property
    def executed(self) -> int:
        """How many rows the target gave a result for."""
        return sum(row.executed for row in self.results)

    @property
    def ended(self) -> bool:
        """Whether no row is known to be lacking."""
        return self.asked in (None, len(self.results))

    @property
    def lacking(self) -> int:
        """How many rows are known to be lacking."""
        return max(0, (self.asked or 0) - len(self.results))

    @property
    def gave_up(self) -> str:
        """That the run gave up before its end, in a sentence; empty where it did not."""
        return (
            f"gave up: {self.stopped}, so {self.lacking} of {self.asked} were not run" if self.stopped else ""
        )

    @property
    def failed(self) -> int:
        """How many rows make the target non-conformant."""
        return sum(row.failed for row in self.results)

    @property
    def as_expected(self) -> bool:
        """Whether nothing failed that the baseline does not know, and the baseline is in order."""
        sound = self.baseline is None or not self.baseline.problems
        return sound and not any(row.unexpected for row in self.results)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; what a run need not have stands after what each has."""
        baseline = self.baseline and {
            "path": self.baseline.path,
            "problems": list(self.baseline.problems),
        }
        return {
            "report_version": REPORT_VERSION,
            "suite_version": self.suite_version,
            "spec_version": self.spec_version,
            "vectors_sha256": self.vectors_sha256,
            "target": asdict(self.target),
            "environment": dict(self.environment),
            "command": list(self.command),
            "status": self.status,
            "summary": dict(self.summary),
            "features": {
                name: {"status": f.status, "pass": f.passed, "fail": f.failed}
                for name, f in self.features.items()
            },
            "profiles": dict(self.profiles),
            "untested_requirements": list(self.untested_requirements),
            "results": [row_to_json(row) for row in self.results],
            **({"splits": [dict(split) for split in self.splits]} if self.splits else {}),
            **({"notes": [dict(note) for note in self.notes]} if self.notes else {}),
            **({"options": dict(self.options)} if self.options is not None else {}),
            **({"baseline": baseline} if baseline else {}),
            **({"asked": self.asked} if self.asked is not None else {}),
            **({"mode": EXPLORE, **asdict(self.drawing)} if self.drawing is not None else {}),
            **({"stopped": self.stopped} if self.stopped else {}),
            **({"noticed": self.noticed} if self.noticed else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        """The report of JSON values that the schema accepts."""
        return cls(
            suite_version=data["suite_version"],
            spec_version=data["spec_version"],
            vectors_sha256=data["vectors_sha256"],
            target=TargetInfo(**data["target"]),
            environment=data["environment"],
            command=tuple(data["command"]),
            status=data["status"],
            summary=data["summary"],
            features={
                name: FeatureResult(f["status"], f["pass"], f["fail"]) for name, f in data["features"].items()
            },
            profiles=data["profiles"],
            untested_requirements=tuple(data["untested_requirements"]),
            results=tuple(row_from_json(row) for row in data["results"]),
            splits=tuple(data.get("splits", ())),
            notes=tuple(data.get("notes", ())),
            options=data.get("options"),
            baseline=BaselineResult(data["baseline"]["path"], tuple(data["baseline"]["problems"]))
            if "baseline" in data
            else None,
            asked=data.get("asked"),
            drawing=Drawing(data["seed"], data["drawn"], data["judged"]) if "mode" in data else None,
            stopped=data.get("stopped", ""),
            noticed=data.get("noticed", ""),
        )


@cache
def _validator() -> Any:
    return validator(_inlined(schema("report"), schema("report")["$defs"]))


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema with its references written out: jsonschema takes as long again to follow them, row by row."""
    if isinstance(part, list):
        return [_inlined(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].removeprefix("#/$defs/")], definitions)
    return {name: _inlined(each, definitions) for name, each in part.items() if name != "$defs"}


SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE)


def checksums(given: Iterable[str]) -> frozenset[str]:
    """The SHA-256 of reports as the user gives them.

    Raises:
        UsageError: one is no such number.
    """
    found = {text: SHA256.fullmatch(text.strip()) for text in given}
    for text, match in found.items():
        if match is None:
            raise UsageError(
                f"--sha256 {text[:80]!r} is none: give the 64 digits that the run ended with, report sha256: ..."
            )
    return frozenset(match[1].lower() for match in found.values() if match)


def read_report(path: Path, among: Container[str] | None = None) -> Report:
    """The report of a file; with `among`, one whose SHA-256 is in there.

    Raises:
        UsageError: it cannot be read, is no report, or another than it was.
    """
    try:
        raw = read_bytes(path)
    except TooLargeError as error:
        raise UsageError(f"{path} is not a report: {error}") from error
    except OSError as error:
        raise UsageError(f"report {path} cannot be read: {error.strerror or error}") from error
    if among is not None and (digest := sha256(raw).hexdigest()) not in among:
        raise UsageError(
            f"report {path} has the sha256 {digest}, which was not given: "
            "it was changed after its run, or is of another"
        )
    try:
        data = strict_json(raw)
    except ValueError as error:
        raise UsageError(f"report {path} is not JSON: {error}") from error
    try:
        reason = flaw(_validator(), data) or _twice(data["results"]) or _miscounted(data)
        if not reason:
            return Report.from_json(data)
    except OverflowError as error:  # a number that no float holds
        reason = str(error)
    raise UsageError(f"{path} is not a report of version {REPORT_VERSION}: {reason}")


def _miscounted(data: Mapping[str, Any]) -> str:
    """That what is said of the rows is not what they say."""
    counts = Counter(row["verdict"] for row in data["results"])
    for verdict, number in data["summary"].items():
        if counts[verdict] != number:
            return f"summary: it says {number} {verdict}, and {counts[verdict]} of its rows do"
    if data["status"] == "conformant" and any(counts[verdict] for verdict in FAILURES):
        return "status: it says conformant, and a row fails"
    return ""


def _twice(rows: Iterable[Mapping[str, Any]]) -> str:
    """The error if a row appears twice; empty if none does."""
    seen = set()
    for row in rows:
        key = (row["case"], row["dtype"])
        if key in seen:
            return f"results: {' '.join(key)[:200]} appears twice"
        seen.add(key)
    return ""
