"""How libraries fare by requirement and by feature, read from the reports of their runs."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Literal

from conformance.judging.verdict import Row
from conformance.names import DTYPES, FEATURES
from conformance.resources import spec_directory
from conformance.telling.report import Report
from conformance.telling.requirement_ranking import blame
from conformance.telling.requirements import ID, id_order

Outcome = Literal["passes", "fails", "not supported"]
NO_FEATURE = "no feature"
"""What needs no feature: plain attention."""


@dataclass(frozen=True)
class Standing:
    """How a library fares in one requirement or feature."""

    outcome: Outcome
    tests: int  # that were run
    failing: tuple[Row, ...] = ()  # those that fail because of it

    @property
    def share(self) -> str:
        """`36 of 194`: failing tests of those that were run."""
        return f"{len(self.failing)} of {self.tests}"


@dataclass(frozen=True)
class Kind:
    """Failing tests of one known reason."""

    reason: str
    report: str  # a public report; empty where there is none
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Library:
    """One version of one library, as a run showed it."""

    report: Report

    @property
    def name(self) -> str:
        """What the target is called."""
        return self.report.target.name

    @property
    def version(self) -> str:
        """Of the library; empty where the target gives none."""
        return self.report.target.version or ""

    @property
    def label(self) -> str:
        """The name as words of a page, no markup."""
        return words(self.name)

    @property
    def page(self) -> str:
        """The name of its page, which is safe in an address."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "library"

    @cached_property
    def failing(self) -> tuple[Row, ...]:
        """Tests that fail, in a baseline or not."""
        return tuple(row for row in self.report.results if row.failed)

    @cached_property
    def reasons(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """Failing test -> the requirements it fails because of."""
        ranked = [found.requirement for found in blame(self.report.results)]
        return {row.key: _because(row, ranked) for row in self.failing}

    @cached_property
    def requirements(self) -> Mapping[str, Standing]:
        """Requirement -> how it fares, for each that some test covers."""
        covering: dict[str, list[Row]] = {}
        for row in self.report.results:
            for name in {*row.covers, *self.reasons.get(row.key, ())}:
                covering.setdefault(name, []).append(row)
        return {
            name: _standing(rows, [row for row in rows if name in self.reasons.get(row.key, ())])
            for name, rows in sorted(covering.items(), key=lambda item: id_order(item[0]))
        }

    @cached_property
    def features(self) -> Mapping[str, Standing]:
        """Feature -> how it fares; what needs no feature comes first."""
        rows: dict[str, list[Row]] = {name: [] for name in (NO_FEATURE, *FEATURES)}
        for row in self.report.results:
            for name in row.features or (NO_FEATURE,):
                rows[name].append(row)
        return {name: _standing(those, [row for row in those if row.failed]) for name, those in rows.items()}

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The failing tests by what is known of them, the largest kind first; what nobody knows comes last."""
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self.failing:
            known = (row.known.reason, row.known.report) if row.known else ("", "")
            found.setdefault(known, []).append(row)
        kinds = [Kind(reason, report, tuple(rows)) for (reason, report), rows in found.items()]
        return tuple(sorted(kinds, key=lambda kind: (not kind.reason, -len(kind.rows), kind.reason)))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those that were tested."""
        return tuple(d for d in DTYPES if any(r.dtype == d and r.executed for r in self.report.results))

    @property
    def passed(self) -> int:
        """Tests that pass."""
        return sum(row.passed for row in self.report.results)

    @property
    def kept(self) -> int:
        """Requirements of which no test fails."""
        return Counter(s.outcome for s in self.requirements.values())["passes"]

    @property
    def tried(self) -> int:
        """Requirements of which some test was run."""
        return sum(s.outcome != "not supported" for s in self.requirements.values())


def _because(row: Row, ranked: Sequence[str]) -> frozenset[str]:
    """What a known reason names; else the requirement of the test that tells most about all failures."""
    if row.known and (named := ID.findall(row.known.reason)):
        return frozenset(named)
    return frozenset([name for name in ranked if name in row.covers][:1] or row.covers[:1])


def _standing(rows: Sequence[Row], failing: Sequence[Row]) -> Standing:
    executed = sum(row.executed for row in rows)
    if not executed:
        return Standing("not supported", 0)
    return Standing("fails" if failing else "passes", executed, tuple(failing))


def words(text: str) -> str:
    """Text from elsewhere as words of a page: no markup, no column of a table."""
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", escape(text, quote=True))


def reason_words(reason: str) -> str:
    """A known reason as words of a library's page; a page of the specification that it names is a link."""

    def link(named: re.Match[str]) -> str:
        there = (spec_directory() / f"{named[1]}.md").is_file()
        return f"([{named[1]}](../spec/{named[1]}.md))" if there else named[0]

    return re.sub(r"\(([a-z-]+)\.md\)", link, words(reason))


@dataclass(frozen=True)
class Libraries:
    """All libraries; of one that was run in several versions the newest, and the others as its history."""

    newest: tuple[Library, ...]
    history: Mapping[str, tuple[Library, ...]]  # name -> every version, the newest first


def read_libraries(reports: Iterable[Report]) -> Libraries:
    """Orders reports by the name of the target and its version."""
    by_name: dict[str, list[Library]] = {}
    for report in reports:
        by_name.setdefault(report.target.name, []).append(Library(report))
    history = {
        name: tuple(sorted(those, key=lambda library: _order(library.version), reverse=True))
        for name, those in sorted(by_name.items())
    }
    return Libraries(tuple(those[0] for those in history.values()), history)


def _order(version: str) -> list[tuple[int, str]]:
    """Versions in the order of their numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+]", version)]
