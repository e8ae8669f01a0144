"""Known failures: a file of them, what a row becomes with it, and what is wrong with the file (CONF-14, CONF-15)."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.judging.verdict import Known, Row
from conformance.names import DTYPES
from conformance.reading import TooLargeError, flaw, read_bytes, utf8, validator
from conformance.resources import schema
from conformance.running.suggestions import nearest

BASELINE_VERSION = 1
MOST_BYTES = 2**21
"""Of a file: one that knows every row of the suite, with a long reason for each, has half of that."""
MOST_DOTS = 200
"""In a line."""
MOST_PROBLEMS = 100
"""That are told: to look for the nearest name of a case takes its time."""


@dataclass(frozen=True)
class Entry:
    """One known failure."""

    case: str
    reason: str
    dtypes: tuple[str, ...] = ()  # empty = every dtype that the run has of the case
    verdicts: tuple[str, ...] = ()  # empty = any failure
    report: str = ""

    def knows(self, row: Row) -> bool:
        """Whether a row is what this entry is about."""
        return self.case == row.case and (not self.dtypes or row.dtype in self.dtypes)

    def __str__(self) -> str:
        return " ".join((self.case, *self.dtypes))


@dataclass(frozen=True)
class Baseline:
    """What is known to fail, and where that is written."""

    path: str
    entries: tuple[Entry, ...]

    def seen(self, row: Row) -> Row:
        """The row as the baseline has it: `xfail` where it fails as is known, `xpass` where it passes instead."""
        entry = self.entry(row)
        if entry is None or not row.executed:
            return row
        known = Known(row.verdict, entry.reason, entry.report)
        if not row.failed:
            return replace(
                row, verdict="xpass", known=known, message=f"passes, though {self.path} knows it to fail"
            )
        if entry.verdicts and row.verdict not in entry.verdicts:
            wanted = " or ".join(entry.verdicts)
            return replace(
                row, message=f"{row.message} (known as {wanted}, not as {row.verdict}: {self.path})"
            )
        return replace(row, verdict="xfail", known=known)

    def entry(self, row: Row) -> Entry | None:
        """The first entry that is about a row."""
        return next((entry for entry in self._by_case.get(row.case, ()) if entry.knows(row)), None)

    @cached_property
    def _by_case(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.case, []).append(entry)
        return found

    def problems(
        self, rows: Iterable[Row], held: Mapping[str, Iterable[str]], due: Iterable[tuple[str, str]]
    ) -> tuple[str, ...]:
        """What is wrong with the file, apart from rows that pass against it; one sentence each.

        Args:
            rows: those of the run.
            held: case ID -> the dtypes that can hold it, for every case of the suite.
            due: what the run was to ask, as (case ID, dtype): what it left out cannot be stale.
        """
        executed = {row.key for row in rows if row.executed}
        asked = set(due)
        before: dict[str, set[str]] = {}  # case ID -> the dtypes of earlier entries, "" for every one
        found = (
            f"{self.path}: {entry}: {problem}"
            for entry in self.entries
            for problem in (
                *_flaws(entry, held),
                *_stale(entry, executed, asked, held),
                *_twice(entry, before.setdefault(entry.case, set())),
            )
        )
        first = tuple(islice(found, MOST_PROBLEMS))
        return (*first, f"{self.path}: there are more") if next(found, None) else first


def _flaws(entry: Entry, held: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """What is wrong with an entry whatever a run gives."""
    if not entry.reason.strip():
        yield "its reason is empty; say why it is known to fail (CONF-15)"
    if entry.case not in held:
        yield f"no case has this ID{nearest(entry.case, held)} (CONF-15)"
    for dtype in entry.dtypes:
        if dtype not in DTYPES:
            yield f"{dtype!r} is not a dtype{nearest(dtype, DTYPES)} (CONF-15)"
        elif dtype not in held.get(entry.case, DTYPES):
            yield f"the case has no row in {dtype} (CONF-15)"


def _stale(
    entry: Entry, executed: set[tuple[str, str]], due: set[tuple[str, str]], held: Mapping[str, Iterable[str]]
) -> Iterator[str]:
    """What of it the run was to ask, and has no result for."""
    possible = [dtype for dtype in DTYPES if dtype in held.get(entry.case, ())]
    asked = [dtype for dtype in entry.dtypes or possible if (entry.case, dtype) in due and dtype in possible]
    met = [dtype for dtype in asked if (entry.case, dtype) in executed]
    if entry.dtypes:
        for dtype in (dtype for dtype in asked if dtype not in met):
            yield f"it is stale: {dtype} was not executed (CONF-15)"
    elif asked and not met:
        yield "it is stale: the case was not executed (CONF-15)"


def _twice(entry: Entry, before: set[str]) -> Iterator[str]:
    """That another entry is about the same rows; the dtypes of this one are added to those before."""
    if before and (not entry.dtypes or "" in before or not before.isdisjoint(entry.dtypes)):
        yield "another entry is about the same rows (CONF-15)"
    before.update(entry.dtypes or ("",))


def read_baseline(path: Path) -> Baseline:
    """The baseline of a file.

    Raises:
        UsageError: it cannot be read, or is not of the published form.
    """
    try:
        raw = read_bytes(path, MOST_BYTES)
    except TooLargeError as error:
        raise UsageError(f"{path} is not a baseline: {error}") from error
    except OSError as error:
        raise UsageError(f"baseline {path} cannot be read: {error.strerror or error}") from error
    try:
        data = _toml(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"baseline {path} is not TOML: {error}") from error
    if found := flaw(validator(schema("baseline")), data):
        raise UsageError(f"{path} is not a baseline of version {BASELINE_VERSION}: {found}")
    return Baseline(
        str(path),
        tuple(
            Entry(
                case=entry["case"],
                reason=entry["reason"],
                dtypes=tuple(entry.get("dtypes", ())),
                verdicts=tuple(entry.get("verdicts", ())),
                report=entry.get("report", ""),
            )
            for entry in data["known"]
        ),
    )


def _toml(raw: bytes) -> dict[str, Any]:
    """The values of TOML, whose parser takes hours for a name of a hundred thousand parts."""
    if any(line.count(b".") > MOST_DOTS for line in raw.splitlines()):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    return tomllib.loads(utf8(raw))


def baseline_of(rows: Iterable[Row]) -> list[tuple[Entry, Row]]:
    """An entry for every failure, dtypes that fail alike together, each with the first of its rows.

    Reasons and reports are those that an earlier baseline gave, and empty where none did.
    """
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.failed:
            known = row.known
            group = (row.case, row.judged, known.reason if known else "", known.report if known else "")
            groups.setdefault(group, []).append(row)
    return [
        (Entry(case, reason, tuple(row.dtype for row in those), (verdict,), report), those[0])
        for (case, verdict, reason, report), those in groups.items()
    ]
