"""What the command does: search for who shows each defect, confirm the record, mend it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import click

from conformance.defects.bank import DEFECTS
from conformance.defects.confirm import confirm, orphans
from conformance.defects.defect import Defect
from conformance.defects.judges.broken import caught
from conformance.defects.kill import ENOUGH, Kill, excused, matrix
from conformance.defects.lines import KIND, as_json, line, totals
from conformance.defects.record import RECORD, Record, fingerprints, read_record, write_record
from conformance.defects.since import since
from conformance.vectors.load import load_vectors


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for."""

    word: str
    policy: str
    every: bool
    as_json: bool
    quiet: bool
    write: bool
    since: str = ""  # a commit; of what is as it was then nothing is asked that is excused

    @property
    def enough(self) -> int | None:
        """Kills after which a dtype is done with."""
        return None if self.every else ENOUGH


def searched(wanted: Wanted, chosen: Sequence[Defect]) -> list[str]:
    """Searches for the cases that show each defect; what is not as it must be."""
    kept = read_record() if wanted.write and wanted.word else Record()
    now = fingerprints(load_vectors().sha256)
    kills = run(wanted, chosen)
    click.echo(json.dumps([as_json(kill) for kill in kills], indent=1) if wanted.as_json else totals(kills))
    problems = [problem for kill in kills for problem in kill.problems]
    if not wanted.word:
        problems += judges(silent=wanted.as_json)
    if wanted.write and not problems:
        store(kept, kills, kept.searched if wanted.word else now)
    return problems


def confirmed(wanted: Wanted, chosen: Sequence[Defect], search_if_stale: bool) -> list[str]:
    """Confirms the kills on record; what no longer holds."""
    record, vectors = read_record(), load_vectors()
    found = list(confirm(chosen, record, vectors.cases))
    problems = [problem for _, those in found for problem in those]
    if not wanted.word:
        problems += orphans(DEFECTS, record) + judges()
    click.echo(totals([kill for kill, _ in found]))
    changed = record.changed(fingerprints(vectors.sha256))
    if changed and search_if_stale:
        problems += escaped(wanted, chosen, changed)
    elif changed and not wanted.quiet:
        click.echo(
            f"note: {' and '.join(changed)} changed since the record was searched, and only what it names was asked; "
            "add --search-if-stale to see that nothing shows what is excused"
        )
    return problems


def mended(wanted: Wanted, chosen: Sequence[Defect]) -> list[str]:
    """Searches for what is not on record or no longer holds, and for nothing else; what is not as it must be."""
    record, vectors = read_record(), load_vectors()
    now = fingerprints(vectors.sha256)
    wrong = [kill.defect for kill, problems in confirm(chosen, record, vectors.cases) if problems]
    kills = run(wanted, wrong) if wrong else []
    told = f"; searched for: {totals(kills)}" if kills else ""
    click.echo(f"{len(chosen) - len(wrong)} of {len(chosen)} defects are as on record{told}")
    problems = [problem for kill in kills for problem in kill.problems]
    if not wanted.write and not wanted.word:
        problems += orphans(DEFECTS, record)
    changed = [] if wanted.word else record.changed(now)
    if changed:
        problems += escaped(wanted, [defect for defect in chosen if defect not in wrong], changed) + judges()
    if wanted.write and not problems:
        store(record, kills, record.searched if wanted.word else now)
    return problems


def run(wanted: Wanted, chosen: Sequence[Defect]) -> list[Kill]:
    """Searches, and tells of each defect as it is done with."""
    kills = []
    for kill in matrix(chosen, wanted.policy, wanted.enough):
        kills.append(kill)
        if not wanted.as_json and not wanted.quiet:
            click.echo(line(kill))
    return kills


def escaped(wanted: Wanted, chosen: Sequence[Defect], changed: Sequence[str]) -> list[str]:
    """What some case shows though the bank excuses it: with the kills on record all that a search would find."""
    those = [defect for defect in chosen if excused(defect)]
    parts: list[tuple[str, Sequence[Defect], frozenset[str] | None]] = [("every case was", those, None)]
    if wanted.since:
        found = since(wanted.since, read_record())
        whole = [d for d in those if found.kinds is None or KIND[d.id] in found.kinds]
        rest = [d for d in those if d not in whole]
        parts = [("every case was", whole, None)] if whole else []
        parts += [(f"changed cases, {len(found.cases)}, were", rest, found.cases)] if rest else []
    kills = []
    for asked, some, only in parts:
        part = (
            list(matrix(some, wanted.policy, 1, dtypes=excused, only=only))
            if some and (only is None or only)
            else []
        )
        kills += part
        number = sum(len(kill.cases) for kill in part)
        shown = sum(bool(cases) for kill in part for cases in kill.cases.values())
        click.echo(
            f"{' and '.join(changed)} changed since the record was searched: {asked} asked of {len(some)} defects "
            f"at the {number} dtypes that excuse them, {shown} shown"
        )
    return [problem for kill in kills for problem in kill.problems]


def judges(silent: bool = False) -> list[str]:
    """Runs the defects of the judge; those that nothing shows."""
    shown = dict(caught())
    if not silent:
        click.echo(
            f"{len(shown)} defects of the judge: {sum(map(bool, shown.values()))} of {len(shown)} shown"
        )
    return [f"no answer of the table shows that in a judge {name}" for name in shown if not shown[name]]


def store(kept: Record, kills: Sequence[Kill], fingerprinted: Mapping[str, str]) -> None:
    """Writes the record, in the order of the bank and of nothing that has left it."""
    fresh = {kill.defect.id: {dtype: cases for dtype, cases in kill.cases.items() if cases} for kill in kills}
    known = {**kept.kills, **fresh}
    record = replace(
        kept, searched=fingerprinted, kills={d.id: known[d.id] for d in DEFECTS if d.id in known}
    )
    write_record(record)
    click.echo(f"{len(fresh)} of {len(record.kills)} records written anew to {RECORD}")
