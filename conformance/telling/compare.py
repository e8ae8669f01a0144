"""What changed between two reports, row by row; baselines of the two are not looked at."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conformance.judging.verdict import Row
from conformance.telling.recorder import place
from conformance.telling.report import Report


@dataclass(frozen=True)
class Change:
    """One row in the two reports; None where one of them does not have it."""

    before: Row | None
    after: Row | None

    @property
    def row(self) -> Row:
        """The later of the two."""
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def words(self) -> str:
        """From which verdict to which."""
        return " -> ".join("no row" if row is None else row.judged for row in (self.before, self.after))


@dataclass(frozen=True)
class Comparison:
    """Two reports; every row that both have alike is left out."""

    notes: tuple[str, ...]  # what else is not the same
    regressions: tuple[Change, ...]
    fixed: tuple[Change, ...]
    changed: tuple[Change, ...]  # another verdict that is neither better nor worse
    new: tuple[Change, ...]
    vanished: tuple[Change, ...]
    same: int

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values, of spec/schema/comparison.json."""
        return {
            "comparison_version": 1,
            "notes": list(self.notes),
            "same": self.same,
            **{
                name: [
                    {
                        "case": change.row.case,
                        "dtype": change.row.dtype,
                        "before": change.before and change.before.judged,
                        "after": change.after and change.after.judged,
                        "message": change.row.message,
                    }
                    for change in getattr(self, name)
                ]
                for name in KINDS
            },
        }


TWO = "these are two targets"
"""How the first note begins where the reports are of different targets."""
KINDS = {
    "regressions": "regressed",
    "fixed": "fixed",
    "changed": "changed",
    "new": "new",
    "vanished": "vanished",
}
"""The lists of a comparison, and the word for what is in each."""


def compare(before: Report, after: Report) -> Comparison:
    """Compares two reports.

    A row has regressed if it fails and did not, or passed and does not. A row that passed and is not there any
    more has regressed as well, if both runs had the same vectors and options: a run that ended early, or a dtype
    that is no longer claimed, must not look like a success.
    """
    comparable = before.vectors_sha256 == after.vectors_sha256 and not _options(before, after)
    old, new = ({row.key: row for row in report.results} for report in (before, after))
    changes = [
        Change(old.get(key), new.get(key))
        for key in sorted({*old, *new}, key=lambda key: place(new.get(key) or old[key]))
    ]
    kinds: dict[str, list[Change]] = {name: [] for name in (*KINDS, "same")}
    for change in changes:
        kinds[kind_of(change, comparable)].append(change)
    same = len(kinds.pop("same"))
    return Comparison(
        notes(before, after), same=same, **{name: tuple(those) for name, those in kinds.items()}
    )


def kind_of(change: Change, comparable: bool) -> str:
    """Which list a change belongs to."""
    before, after = change.before, change.after
    if before is None:
        return "new"
    if after is None:
        return "regressions" if comparable and before.passed else "vanished"
    if before.judged == after.judged:
        return "same"
    if (after.failed and not before.failed) or (before.passed and not after.passed):
        return "regressions"
    return "fixed" if before.failed and after.passed else "changed"


def notes(before: Report, after: Report) -> tuple[str, ...]:
    """What differs in addition to the rows, a sentence each."""
    pairs: Iterable[tuple[str, Any, Any]] = (
        ("target's version", before.target.version, after.target.version),
        ("accuracy", before.target.accuracy, after.target.accuracy),
        ("suite version", before.suite_version, after.suite_version),
        ("spec version", before.spec_version, after.spec_version),
        ("vectors", before.vectors_sha256[:12], after.vectors_sha256[:12]),
        *(
            (name, before.environment.get(name), after.environment.get(name))
            for name in sorted({*before.environment, *after.environment})
        ),
        *_options(before, after),
        ("status", before.status, after.status),
    )
    found = [f"{what}: {was or 'none'} -> {now or 'none'}" for what, was, now in pairs if was != now]
    if before.target.name != after.target.name:
        found.insert(0, f"{TWO}: A is {before.target.name}, B is {after.target.name}")
    return tuple(found)


def _options(before: Report, after: Report) -> list[tuple[str, Any, Any]]:
    """The options that differ, but for the seed of the variants."""
    one, two = before.options or {}, after.options or {}
    pairs = ((name, one.get(name), two.get(name)) for name in sorted({*one, *two} - {"fresh"}))
    return [(f"option {name}", was, now) for name, was, now in pairs if was != now]
