"""One requirement in full: what it requires, why, who tests it and how it is broken; or one defect."""

import re
from typing import Any

from conformance.defects.record import THEN, read_record
from conformance.errors import UsageError
from conformance.names import FEATURES
from conformance.running.suggestions import known, nearest
from conformance.telling.decisions import read_decisions
from conformance.telling.inventory import read_cases, read_defects
from conformance.telling.markdown import unlinked
from conformance.telling.requirements import Requirement, read_requirements
from conformance.telling.terminal import counted, shorten


def kind_of(name: str) -> str:
    """What a name is, whatever its letters' case: `requirement`, `case`, `defect`, or nothing that is known."""
    if any(r.id == name.upper() for r in read_requirements()):
        return "requirement"
    if any(case.id == name.lower() for case in read_cases()):
        return "case"
    return "defect" if any(defect.id == name.lower() for defect in read_defects()) else ""


def explanation(name: str) -> dict[str, Any]:
    """All that is known of a requirement, as JSON values.

    Raises:
        UsageError: there is none of this name.
    """
    requirements = {requirement.id: requirement for requirement in read_requirements()}
    found = requirements[
        known("requirement", name.upper() if name.upper() in requirements else name, requirements)
    ]
    decisions = {decision.path: decision for decision in read_decisions()}
    return {
        "id": found.id,
        "name": found.name,
        "requirement": found.title,
        "notes": list(found.notes),
        "level": found.level,
        "features": list(found.features),
        "untested": found.untested or None,
        "file": f"spec/{found.file}",
        "text": found.text,
        "rationale": found.rationale,
        "decisions": [
            {"file": f"spec/{path}", "title": decisions[path].title, "decision": decisions[path].decision}
            for path in found.decisions
            if path in decisions
        ],
        "cases": [{"id": case.id, "note": case.note} for case in read_cases() if found.id in case.covers],
        "defects": [
            {"id": defect.id, "sentence": defect.sentence, "origin": defect.origin}
            for defect in read_defects()
            if found.id in defect.violates
        ],
    }


def subject(word: str) -> list[Requirement]:
    """The requirements of a chapter, a feature or a letter code such as MASK; none if it is none of these.

    Raises:
        UsageError: it is nothing that is known; the message gives what is close to it.
    """
    every, low = read_requirements(), word.lower()
    found = [r for r in every if low in (r.chapter, r.id.rpartition("-")[0].lower()) or low in r.features]
    if not found:
        words = {name for r in every for name in (r.id, r.chapter, r.name.lower())} | set(FEATURES)
        hint = nearest(word, words) or "; `mha-conformance list requirements` names all"
        raise UsageError(f"unknown requirement {shorten(word)!r}{hint}")
    return found


def subject_lines(word: str, found: list[Requirement]) -> list[str]:
    """The same for people."""
    width = max(len(requirement.label) for requirement in found)
    return [
        f"{word} is a chapter or a feature with {counted(len(found), 'requirement')}:",
        *(f"  {requirement.label:<{width}}  {requirement.title}" for requirement in found),
    ]


def defect_explanation(name: str) -> dict[str, Any]:
    """All that is known of a defect of the bank, as JSON values."""
    defect = next(defect for defect in read_defects() if defect.id == name.lower())
    requirements = {requirement.id: requirement for requirement in read_requirements()}
    return {
        "id": defect.id,
        "sentence": defect.sentence,
        "origin": defect.origin,
        "features": list(defect.features),
        "equivalent": defect.equivalent,
        "stateful": defect.stateful,
        "violates": [
            {"id": r.id, "name": r.name, "requirement": r.title}
            for r in map(requirements.__getitem__, defect.violates)
        ],
        "shown by": read_record().kills.get(defect.id, {}),
    }


def defect_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [found["id"], f"  {found['sentence']}", "", f"origin    {found['origin']}"]
    lines += [f"features  {', '.join(found['features'])}"] if found["features"] else []
    lines += [f"shows     nowhere: {found['equivalent']}"] if found["equivalent"] else []
    lines += [f"violates  {each['id']} {each['name']}  {each['requirement']}" for each in found["violates"]]
    shown: dict[str, list[str]] = {}
    lines += _state(found)
    for dtype, cases in found["shown by"].items():
        for case in cases:
            shown.setdefault(case, []).append(dtype)
    rows = [{"id": case, "dtypes": ", ".join(dtypes)} for case, dtypes in shown.items()]
    return lines + _rows("case on record that shows it", "cases on record that show it", rows, "dtypes")


def _state(found: dict[str, Any]) -> list[str]:
    """What has to be asked where one call does not show a defect."""
    if not found["stateful"]:
        return []
    orders = any(THEN in shown for cases in found["shown by"].values() for shown in cases)
    what = (
        "run in one process in the order below, the last case fails"
        if orders
        else "each case below fails alone, in a new process"
    )
    return [f"state     the result depends on earlier calls; {what}"]


def explanation_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [f"{found['id']} {found['name']}  {' · '.join(found['notes'])}  ({found['file']})"]
    titles = {decision["title"].partition(" ")[0]: decision["title"] for decision in found["decisions"]}
    lines += _block(found["requirement"]) + _part("", found["text"])
    lines += _part("Rationale", _named(found["rationale"], titles))
    for decision in found["decisions"]:
        lines += _part(f"Decision  {decision['title']}  ({decision['file']})", decision["decision"])
    lines += _rows("case", "cases", found["cases"], "note")
    lines += _rows("known mistake", "known mistakes", found["defects"], "sentence")
    return lines


def _named(text: str, titles: dict[str, str]) -> str:
    """The text with each decision by its title, which says more than its number."""
    for number, title in titles.items():
        text = f'"{title}"'.join(re.split(rf"\[{number}\]\([^)\s]+\)", text))
    return text


def _part(heading: str, text: str) -> list[str]:
    return ["", *([heading] if heading else []), *_block(text)] if text else []


def _block(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in unlinked(text).splitlines()]


def _rows(one: str, many: str, rows: list[dict[str, str]], said: str) -> list[str]:
    if not rows:
        return ["", f"No {one}"]
    width = max(len(row["id"]) for row in rows)
    return [
        "",
        f"{len(rows)} {one if len(rows) == 1 else many}",
        *(f"  {row['id']:<{width}}  {row[said]}" for row in rows),
    ]
