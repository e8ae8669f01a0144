"""A diagnosis in sentences, as JSON, and in the rows of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Diagnosed, Finding, Note
from conformance.diagnosis.model import Model
from conformance.diagnosis.saying import kind
from conformance.diagnosis.split import Split
from conformance.judging.verdict import Diagnosis, Row
from conformance.telling.requirements import named_all
from conformance.telling.terminal import counted
from conformance.telling.unseen import why_unseen

SAID = 3
"""Messages of the failures that are repeated."""
STATE = ("unsteady",)
"""Kinds of notes that stand first whatever else holds."""
NEARLY = 0.8
"""The share of what fails that a note explains which stands before the conditions."""
ALIKE = 3
"""Mistakes of the same effect that are named."""
OPERATIONS = ("in gradients", "in the layer", "in scaled_dot_product_attention")
"""Conditions that say little."""
LITTLE = ("whatever is left out of the call", "only with numbers such as these")
"""What experiments say where they found no condition."""
KINDS = {"fail": "is wrong", "error": "raises", "crash": "crashes", "timeout": "gives no answer in time"}
"""How failing rows of a verdict fail."""


def diagnosis_lines(found: Diagnosed, rows: Iterable[Row] = ()) -> list[str]:
    """What was found, a sentence each; nothing where nothing failed. The rows say why some could not be analysed."""
    if not found.failed:
        return []
    said = _said(found)
    told = [
        *((not note.first, -len(note.explained), note_line(note, found.failed)) for note in found.notes),
        *((True, -finding.explains, finding_line(finding)) for finding in found.findings),
        *((True, -n, f"{n} of {_failures(found.failed)} say it themselves: {words}") for words, n in said),
    ]
    lines = [line for _, _, line in sorted(told, key=lambda each: each[:2])]
    unexplained = found.failed - found.explained - sum(n for _, n in said)
    if found.single:
        lines.append(_single(found))
    elif not lines and found.compared:
        lines.append(_nothing(found))
    elif lines and unexplained:
        remain = "remains" if unexplained == 1 else "remain"
        lines.append(f"{unexplained} of {_failures(found.failed)} {remain} unexplained")
    if unseen := found.failed - found.compared:
        lines.append(f"{counted(unseen, 'failure')} could not be analysed: {why_unseen(rows)}")
    if found.hurried:
        lines.append("the time for the diagnosis ran out: there may be more to find")
    there = _there(found)
    noted = any(note.first and 2 * len(note.explained) > found.failed for note in found.notes)
    places = [place.sentence for place in found.places if not noted]
    mostly = any(split.failing_elsewhere for split in found.splits[:1])
    conditions = split_lines(found.splits, there)
    # what is said of other rows may be chance where the rows of all calls are told
    conditions = [*places, *conditions[: 1 if places else None]] if mostly else [*conditions, *places]
    exact = _exact(found)
    if not exact:
        conditions += [sentence for each in found.results for sentence in each.untold(conditions)]
    certain = [note_line(note, found.failed) for note in found.notes if _certain(note, found)]
    vague = _vague(found, there)
    certain += [exact] if vague and exact not in ("", *certain) else []
    needs = any(not any(little in words for little in LITTLE) for words in found.experiments)
    before = [*found.experiments, *conditions] if vague and needs else [*conditions, *found.experiments]
    return [*certain, *before, *(line for line in lines if line not in certain)]


def _exact(found: Diagnosed) -> str:
    """What explains nearly all that fails, in a sentence, if no passing row speaks against it."""
    nearly = NEARLY * found.compared
    notes = [note_line(each, found.failed) for each in found.notes if len(each.explained) >= nearly]
    findings = [
        finding_line(each)
        for each in found.findings
        if each.explains >= nearly and not each.contradicted and not each.alike
    ]
    return next(iter([*notes, *findings]), "")


def _certain(note: Note, found: Diagnosed) -> bool:
    """Whether a note is said before any condition: another answer each time, or what explains nearly all that fails."""
    return note.first and (note.kind in STATE or len(note.explained) >= NEARLY * found.failed)


def _vague(found: Diagnosed, there: str) -> bool:
    """Whether the first condition says little.

    It does where most of its rows pass, unless it is known where in them something is wrong, and where it is
    an operation and no more; where there is none as well.
    """
    if not found.splits:
        return True
    first = found.splits[0]
    return (first.passing > first.failing and not there) or first.condition in OPERATIONS


def _there(found: Diagnosed) -> str:
    """Where in the rows of the first condition numbers are wrong; empty where forward calls and gradients differ."""
    condition = found.splits[0].condition if found.splits else ""
    return "".join(each.there(condition) for each in found.results if each.alone)


def _said(found: Diagnosed) -> list[tuple[str, int]]:
    """What calls that gave no numbers say alike in several cases and no finding explains, and how many say so."""
    alike: dict[str, list[Failure]] = {}
    for failure in found.left:
        if failure.said:
            alike.setdefault(kind(failure.said), []).append(failure)
    told = [(those[0].said, len(those)) for those in alike.values() if len({f.case.id for f in those}) > 1]
    return sorted(told, key=lambda each: -each[1])[:SAID]


def _single(found: Diagnosed) -> str:
    """The mistakes that fit the only wrong answer; it alone cannot tell them apart."""
    models = found.single
    which = "the only wrong answer" if found.compared > found.numbers else "the only failing case"
    lead = f"one failure fits: {_sentence(models[0])} ({_names(models[0])})"
    others = list({_ids(model): model for model in models[1:] if _ids(model) != _ids(models[0])}.values())
    if not others:
        return lead
    alike = [f"{_sentence(model).rstrip('.')} ({_ids(model)})" for model in others[:ALIKE]]
    more = [f"and {len(others) - ALIKE} more"] if len(others) > ALIKE else []
    return f"{lead}. {which.capitalize()} cannot tell it from: {'; '.join([*alike, *more])}"


def _nothing(found: Diagnosed) -> str:
    """That no model is named: of one case that raises many would do the same, which says nothing."""
    if found.raised and found.cases == 1:
        return "No diagnosis: the only failing case raised an exception, which stands with the failure"
    if found.cases > 1:
        return f"No diagnosis: no known mistake explains these {_failures(found.failed)}"
    return "No diagnosis: no known mistake gives the numbers of the only failing case"


def note_line(note: Note, of: int) -> str:
    """What is said without a model, how much of what fails it explains, and the requirement."""
    like = f"; such as {', '.join(note.ids)}" if note.ids else ""
    names = f"{named_all(note.violates)}{like}"
    line = f"{note.sentence}. This explains {len(note.explained)} of {_failures(of)} ({names})."
    if note.beside:
        line += (
            f" {counted(note.beside, 'other inaccurate test')} of that dtype {_is(note.beside)} further off."
        )
    return line


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def split_lines(splits: Sequence[Split], there: str = "") -> list[str]:
    """What failing rows have in common and passing rows have not, a sentence for each condition.

    `there` is what holds in all rows that are wrong: `only in the gradient of key`.
    """
    return told_splits((split_json(split) for split in splits), there)


def told_splits(splits: Iterable[Mapping[str, Any]], there: str = "") -> list[str]:
    """The same, of conditions as they stand in a report."""
    lines, told = [], set[str]()
    for split in splits:
        kind, elsewhere = split["verdict"], split["failing_elsewhere"]
        verb = KINDS.get(kind, "fails")
        who = f"Of the other rows it {verb}" if kind in told else f"It {verb}"
        part = f", and there {there}" if there and kind == "fail" and kind not in told else ""
        lines.append(
            f"{who} {'mostly' if elsewhere else 'only'} {split['condition']}{part}: {split['failing']} of "
            f"{counted(split['failing'] + split['passing'], 'row')} there, {elsewhere} of "
            f"{elsewhere + split['passing_elsewhere']} elsewhere."
        )
        told.add(kind)
    return lines


def finding_line(finding: Finding) -> str:
    """One finding: what was done wrong, how much of what fails it explains, and the requirement."""
    parts = [f"{_sentence(finding.model)} This explains {finding.explains} of {_failures(finding.of)}"]
    parts[0] += f" ({_names(finding.model)})."
    if finding.partly:
        parts.append("It happens in a part of each of these calls; the rest of them is right.")
    if finding.contradicted:
        parts.append(
            f"Not an exact match: this mistake would also break {finding.contradicted} of "
            f"{counted(finding.looked_at, 'test')} that you pass and that it was tried on. "
            "Yours may occur in some calls only, or be a similar one."
        )
    if alike := _alike(finding):
        more = [f"and {len(alike) - ALIKE} more"] if len(alike) > ALIKE else []
        parts.append(f"These tests cannot tell it from: {'; '.join([*alike[:ALIKE], *more])}.")
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
        "places": [asdict(place) for place in found.places],
        "results": [sentence for each in found.results for sentence in each.sentences],
        "experiments": list(found.experiments),
        "notes": list(notes_json(found)),
        "findings": [_finding_json(finding) for finding in found.findings],
        "single_case": [_ids(model) for model in found.single],
    }


def splits_json(found: Diagnosed) -> tuple[Mapping[str, Any], ...]:
    """The conditions, as they stand in a report."""
    return tuple(map(split_json, found.splits))


def split_json(split: Split) -> Mapping[str, Any]:
    """A condition, as it stands in a report."""
    return {
        "verdict": split.kind,
        "condition": split.condition,
        "failing": split.failing,
        "passing": split.passing,
        "failing_elsewhere": split.failing_elsewhere,
        "passing_elsewhere": split.passing_elsewhere,
    }


def notes_json(found: Diagnosed) -> tuple[Mapping[str, Any], ...]:
    """What is said without a model, as it stands in a report."""
    return tuple(
        {
            "sentence": f"{note.sentence}.",
            "violates": list(note.violates),
            "explains": len(note.explained),
            "of": found.failed,
        }
        for note in found.notes
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
