"""A diagnosis in sentences, as JSON, and in the rows of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Diagnosed, Finding
from conformance.diagnosis.model import Model
from conformance.diagnosis.split import Split
from conformance.judging.verdict import Diagnosis, Row
from conformance.telling.alike import kind
from conformance.telling.requirements import named_all
from conformance.telling.text import counted

SAID = 3
"""Messages of the failures that are repeated."""
ALIKE = 3
"""Mistakes of the same effect that are named."""
KINDS = {"fail": "is wrong", "error": "raises", "crash": "crashes", "timeout": "gives no answer in time"}
"""How failing rows of a verdict fail."""


def diagnosis_lines(found: Diagnosed) -> list[str]:
    """What was found, a sentence each; nothing where nothing failed."""
    if not found.failed:
        return []
    lines = [finding_line(finding) for finding in found.findings]
    said = _said(found)
    lines += [f"{n} of {_failures(found.failed)} say it themselves: {message}" for message, n in said]
    unexplained = found.failed - found.explained - sum(n for _, n in said)
    if found.single:
        lines.append(
            "only one case fails, which is too little to tell by; these known mistakes would do the same: "
            + "; ".join(f"{_sentence(model)} ({_names(model)})" for model in found.single[:ALIKE])
        )
    elif not lines and found.compared:
        lines.append(_nothing(found))
    elif lines and unexplained:
        lines.append(f"{unexplained} of {_failures(found.failed)} remain unexplained")
    if unseen := found.failed - found.compared:
        lines.append(
            f"{counted(unseen, 'failure')} left nothing to compare: a crash, a timeout, or an answer too large"
        )
    if found.hurried:
        lines.append("the time for it ran out: there may be more to find")
    return [*split_lines(found.splits), *lines]


def _said(found: Diagnosed) -> list[tuple[str, int]]:
    """What calls that gave no numbers say alike in several cases and no finding explains, and how many say so."""
    alike: dict[str, list[Failure]] = {}
    for failure in found.left:
        if failure.said:
            alike.setdefault(kind(failure.said), []).append(failure)
    told = [(those[0].said, len(those)) for those in alike.values() if len({f.case.id for f in those}) > 1]
    return sorted(told, key=lambda each: -each[1])[:SAID]


def _nothing(found: Diagnosed) -> str:
    """That no model is named: of one case that raises many would do the same, which says nothing."""
    if found.cases > 1:
        return f"no known mistake reproduces two or more of {_failures(found.failed)}"
    one = "the one case that fails" if found.compared == found.failed else "the one case that can be compared"
    if found.raised:
        return (
            f"{one} raises, which is too little to tell a mistake by; what it raises stands with the failure"
        )
    return f"no known mistake does the same in {one}"


def split_lines(splits: Sequence[Split]) -> list[str]:
    """What failing rows have in common and passing rows have not, a sentence for each condition."""
    lines, told = [], set[str]()
    for split in splits:
        there, elsewhere = split.failing + split.passing, split.failing_elsewhere + split.passing_elsewhere
        verb = KINDS.get(split.kind, "fails")
        who = f"Of the other rows it {verb}" if split.kind in told else f"It {verb}"
        lines.append(
            f"{who} {'mostly' if split.failing_elsewhere else 'only'} {split.condition}: {split.failing} of "
            f"{counted(there, 'row')} there, {split.failing_elsewhere} of {elsewhere} elsewhere."
        )
        told.add(split.kind)
    return lines


def finding_line(finding: Finding) -> str:
    """One finding: what was done wrong, how much of what fails it explains, and the requirement."""
    parts = [f"{_sentence(finding.model)} This explains {finding.explains} of {_failures(finding.of)}"]
    parts[0] += f" ({_names(finding.model)})."
    if finding.partly:
        parts.append("It happens in a part of each of these calls; the rest of them is right.")
    if finding.contradicted:
        parts.append(
            f"Yet {finding.contradicted} of {counted(finding.looked_at, 'passing row')} that it was tried on would "
            "fail too: it may happen in some of the calls only, or be a relative of it."
        )
    if alike := _alike(finding):
        more = [f"and {len(alike) - ALIKE} more"] if len(alike) > ALIKE else []
        parts.append(f"Looks the same here: {'; '.join([*alike[:ALIKE], *more])}.")
    return " ".join(parts)


def _alike(finding: Finding) -> list[str]:
    """Each other mistake that looks the same, once and in words, whatever the sizes of its blocks."""
    others = {_ids(model): model for model in finding.alike if _ids(model) != _ids(finding.model)}
    return [
        f"{' '.join(d.sentence for d in model.defects).rstrip('.')} ({name})"
        for name, model in others.items()
    ]


def _sentence(model: Model) -> str:
    sentences = " ".join(defect.said for defect in model.defects)
    return f"Two mistakes at once: {sentences}" if len(model.defects) > 1 else sentences


def _names(model: Model) -> str:
    return f"{named_all(model.violates)}; {_ids(model)}"


def _ids(model: Model) -> str:
    return " + ".join(defect.id for defect in model.defects)


def _failures(number: int) -> str:
    return counted(number, "failure")


def diagnosed_rows(rows: Iterable[Row], found: Diagnosed) -> list[Row]:
    """The rows, each failing one with what reproduces it; of two mistakes at once each is named."""
    explaining: dict[tuple[str, str], list[Diagnosis]] = {}
    for finding in found.findings:
        for failure in finding.explained:
            those = explaining.setdefault((failure.case.id, failure.dtype), [])
            names = {each.defect for each in those}
            those += [
                Diagnosis(defect.id, finding.explains, finding.of)
                for defect in finding.defects
                if defect.id not in names
            ]
    return [replace(row, diagnosis=tuple(explaining.get((row.case, row.dtype), ()))) for row in rows]


def diagnosis_json(found: Diagnosed) -> dict[str, Any]:
    """All of it as JSON."""
    return {
        "failed": found.failed,
        "compared": found.compared,
        "explained": found.explained,
        "hurried": found.hurried,
        "splits": list(splits_json(found)),
        "findings": [_finding_json(finding) for finding in found.findings],
        "single_case": [_ids(model) for model in found.single],
    }


def splits_json(found: Diagnosed) -> tuple[Mapping[str, Any], ...]:
    """The conditions, as they stand in a report."""
    return tuple(
        {
            "verdict": split.kind,
            "condition": split.condition,
            "failing": split.failing,
            "passing": split.passing,
            "failing_elsewhere": split.failing_elsewhere,
            "passing_elsewhere": split.passing_elsewhere,
        }
        for split in found.splits
    )


def _finding_json(finding: Finding) -> Mapping[str, Any]:
    return {
        "defects": [{"id": d.id, "sentence": d.said, "violates": list(d.violates)} for d in finding.defects],
        "explains": finding.explains,
        "of": finding.of,
        "contradicted": finding.contradicted,
        "looked_at": finding.looked_at,
        "partly": finding.partly,
        "alike": list(dict.fromkeys(_ids(model) for model in finding.alike)),
        "rows": [{"case": f.case.id, "dtype": f.dtype} for f in finding.explained],
    }


def row_lines(rows: Sequence[Row], sentences: Mapping[str, str]) -> list[str]:
    """The diagnosis of a report that was read: a sentence for each defect that its rows name."""
    told = {each.defect: each for row in rows for each in row.diagnosis}
    return [
        f"{sentences.get(each.defect, each.defect)} This explains {each.explains} of {_failures(each.of)} "
        f"({each.defect})."
        for each in sorted(told.values(), key=lambda each: -each.explains)
    ]
