"""Confirms the kills on record, one run for each defect and dtype, in place of a search for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from conformance.defects.defect import Defect
from conformance.defects.kill import Kill, shown
from conformance.defects.record import THEN, UPDATE, Record
from conformance.names import DTYPES
from conformance.vectors.case import Case

POLICY = "fused"
"""The policy of the record."""


def confirm(
    defects: Iterable[Defect], record: Record, cases: Sequence[Case]
) -> Iterator[tuple[Kill, list[str]]]:
    """Each defect with the first kill on record that still holds, by dtype, and what does not hold."""
    by_id = {case.id: case for case in cases}
    for defect in defects:
        if defect.id not in record.kills:
            yield (
                Kill(defect, POLICY, dict.fromkeys(DTYPES, ())),
                [f"{defect.id} is not on record; say `{UPDATE}`"],
            )
        else:
            yield _confirmed(defect, record.kills[defect.id], by_id)


def _confirmed(
    defect: Defect, recorded: Mapping[str, Sequence[str]], by_id: Mapping[str, Case]
) -> tuple[Kill, list[str]]:
    held: dict[str, tuple[str, ...]] = {}
    problems = []
    for dtype in DTYPES:
        first = next(iter(recorded.get(dtype, ())), "")
        wrong = _flaw(defect, dtype, first, by_id)
        held[dtype] = () if wrong or not first else (first,)
        if wrong:
            problems.append(f"{defect.id} at {dtype}: {wrong}")
    return Kill(defect, POLICY, held), problems


def _flaw(defect: Defect, dtype: str, first: str, by_id: Mapping[str, Case]) -> str:
    """Why a first kill on record does not hold; empty if it does, or if there is none and need be none."""
    excuse = defect.excuse(dtype, POLICY)
    if not first:
        return "" if excuse else f"no case is on record; say `{UPDATE}`"
    asked = first.split(THEN)
    if gone := [name for name in asked if name not in by_id]:
        return f"{gone[0]} is on record and no longer a case; say `{UPDATE}`"
    questions = [by_id[name] for name in asked]
    if not all(case.judged(dtype, POLICY) for case in questions):
        return f"{first} is on record and is not judged at this dtype; say `{UPDATE}`"
    if not shown(defect, questions, dtype, POLICY):
        return f"{first} is on record and no longer shows it; say `{UPDATE}`"
    return f"{first} shows it, but the bank says: {excuse}" if excuse else ""


def orphans(defects: Iterable[Defect], record: Record) -> list[str]:
    """Records of no defect."""
    known = {defect.id for defect in defects}
    return [
        f"{name} is on record and not in the bank; say `{UPDATE}`"
        for name in record.kills
        if name not in known
    ]
