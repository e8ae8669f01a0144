"""The parts of a divided run as one report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from conformance.diagnosis.split import splits
from conformance.judging.verdict import Row
from conformance.names import OPERATIONS
from conformance.running.messages import Hello
from conformance.running.quick import QUICK
from conformance.telling import summary
from conformance.telling.diagnosis import split_json
from conformance.telling.recorder import place
from conformance.telling.report import Report
from conformance.telling.requirements import in_force
from conformance.vectors.load import load_vectors
from conformance.version import SUITE_VERSION

NAMED = 8
"""Missing parts that are named: a report may say that it is one of a thousand million."""


@dataclass(frozen=True)
class Joined:
    """Reports, those of one divided run made one, and what is to be said of them."""

    reports: tuple[Report, ...]
    notes: tuple[str, ...]


def join(reports: Sequence[Report]) -> Joined:
    """Joins the reports whose runs differ in their shard alone; a missing part leaves the status incomplete."""
    parts: dict[str, list[Report]] = {}
    for number, report in enumerate(reports):
        parts.setdefault(_run(report) if _shard(report) else str(number), []).append(report)
    joined: list[Report] = []
    notes = [note for report in reports for note in _notes(report)]
    if len({report.vectors_sha256 for report in reports}) > 1:
        notes.append("not all reports are of the same vectors: their counts do not compare")
    for those in parts.values():
        shard = _shard(those[0])
        if shard is None:
            joined.append(those[0])
            continue
        missing = _missing(those)
        if missing:
            notes.append(f"{those[0].target.name}: part {missing} is missing")
        joined.append(_whole(those, not missing))
    return Joined(tuple(joined), tuple(notes))


def _notes(report: Report) -> Iterator[str]:
    """What its counts do not tell, a sentence each."""
    if report.gave_up:
        yield f"{report.target.name}: {report.gave_up}"
    elif not report.ended:
        yield f"{report.target.name}: the run ended after {len(report.results)} of {report.asked} rows"
    if report.suite_version != SUITE_VERSION:
        yield f"{report.target.name}: judged by suite {report.suite_version}; this is {SUITE_VERSION}"


def _shard(report: Report) -> tuple[int, int] | None:
    """I and N of the run; None if it was not divided."""
    text = (report.options or {}).get("shard")
    if not text:
        return None
    part, _, parts = str(text).partition("/")
    return int(part), int(parts)


def _run(report: Report) -> str:
    """What the parts of one run have in common."""
    options = {name: x for name, x in (report.options or {}).items() if name not in ("shard", "fresh")}
    shard = _shard(report)
    parts = shard[1] if shard else 0
    return repr(
        (report.target, report.vectors_sha256, report.suite_version, sorted(options.items(), key=str), parts)
    )


def _missing(reports: Sequence[Report]) -> str:
    """The first of the parts that are not there, as `2/4 and 3/4`; empty if all are."""
    shards = {shard for report in reports if (shard := _shard(report))}
    parts = max((shard[1] for shard in shards), default=0)
    missing = (number for number in range(1, parts + 1) if (number, parts) not in shards)
    first = [f"{number}/{parts}" for number in islice(missing, NAMED)]
    more = ["others"] if next(missing, None) else []
    return " and ".join([*first, *more])


def _whole(reports: Sequence[Report], complete: bool) -> Report:
    """One report over the rows of all parts; a part that is given twice counts once."""
    rows: dict[tuple[str, int], Row] = {place(row): row for report in reports for row in report.results}
    results = tuple(rows[key] for key in sorted(rows))
    first = reports[0]
    hello = Hello(
        name=first.target.name,
        version=first.target.version,
        dtypes=(),
        features=tuple(name for name, result in first.features.items() if result.status != "not claimed"),
        operations=tuple(
            op for op in OPERATIONS if any(row.executed for row in results if row.operation == op)
        ),
        accuracy=first.target.accuracy,
    )
    options = dict(first.options or {})
    narrowed = bool(options.get("k") or options.get("feature") or options.get("profile") == QUICK)
    ended = {_shard(report) for report in reports if report.ended}
    whole = complete and not narrowed and all(_shard(report) in ended for report in reports)
    return replace(
        first,
        status=summary.status(results, hello, whole),
        summary=summary.count(results),
        features=summary.features(results, hello, whole),
        profiles=summary.profiles(results, hello, whole),
        untested_requirements=summary.untested(results, in_force()),
        results=results,
        **_said(reports, results),
        asked=_asked(reports, len(results)),
        stopped=next((report.stopped for report in reports if report.stopped), ""),
        noticed=next((report.noticed for report in reports if report.noticed), ""),
        options={**options, "shard": None if complete else options.get("shard")},
    )


def _said(reports: Sequence[Report], rows: Sequence[Row]) -> dict[str, Any]:
    """Conditions of the whole run, if its parts were diagnosed and the vectors are there; else those of the parts.

    Notes count the rows of their part, so those of several parts are left to the parts.
    """
    diagnosed = any(
        report.splits or report.notes or any(r.diagnosis for r in report.results) for report in reports
    )
    kept = max((report.splits for report in reports), key=len)
    notes = reports[0].notes if len(reports) == 1 else ()
    if not diagnosed or len(reports) == 1:
        return {"splits": kept, "notes": notes}
    vectors = load_vectors()
    if any(report.vectors_sha256 != vectors.sha256 for report in reports):
        return {"splits": kept, "notes": notes}
    return {"splits": tuple(map(split_json, splits(rows, vectors.cases))), "notes": notes}


def _asked(reports: Sequence[Report], rows: int) -> int | None:
    """How many rows the parts have if all go to their ends; None where all did, or one does not say."""
    asked = {_shard(report): report.asked for report in reports}
    numbers = [number for number in asked.values() if number is not None]
    return sum(numbers) if len(numbers) == len(asked) and sum(numbers) > rows else None
