"""One requirement in full: what it asks for, why, who tests it and how it is broken."""

from typing import Any

from conformance.running.nearest import known
from conformance.telling.decisions import read_decisions
from conformance.telling.listing import read_defects
from conformance.telling.markdown import unlinked
from conformance.telling.requirements import read_requirements
from conformance.vectors import load


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
        "cases": [
            {"id": case.id, "note": case.note}
            for case in load.load_vectors().cases
            if found.id in case.covers
        ],
        "defects": [
            {"id": defect.id, "sentence": defect.sentence, "origin": defect.origin}
            for defect in read_defects()
            if found.id in defect.violates
        ],
    }


def explanation_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [f"{found['id']}  {' · '.join(found['notes'])}  ({found['file']})"]
    lines += _block(found["requirement"]) + _part("", found["text"]) + _part("Rationale", found["rationale"])
    for decision in found["decisions"]:
        lines += _part(f"Decision  {decision['title']}  ({decision['file']})", decision["decision"])
    lines += _rows("case", found["cases"], "note") + _rows("known mistake", found["defects"], "sentence")
    return lines


def _part(heading: str, text: str) -> list[str]:
    return ["", *([heading] if heading else []), *_block(text)] if text else []


def _block(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in unlinked(text).splitlines()]


def _rows(what: str, rows: list[dict[str, str]], said: str) -> list[str]:
    if not rows:
        return ["", f"No {what}"]
    width = max(len(row["id"]) for row in rows)
    heading = f"{len(rows)} {what}{'s' if len(rows) > 1 else ''}"
    return ["", heading, *(f"  {row['id']:<{width}}  {row[said]}" for row in rows)]
