"""The stored cases as pages, one a chapter: what each shows, and which libraries fail it."""

from collections.abc import Iterator, Mapping, Sequence

from conformance.telling.requirements import Requirement, id_order
from conformance.telling.site.libraries import Library
from conformance.vectors.case import Case

FOLDER = "cases"


def pages(
    cases: Sequence[Case], libraries: Sequence[Library], requirements: dict[str, Requirement]
) -> Iterator[tuple[str, str]]:
    """Path within the site and text of each page."""
    failing: dict[str, dict[str, str]] = {}  # case -> the name of a library -> where its page tells why
    for library in libraries:
        for row in library.failing:
            why = min(library.reasons[row.key], key=id_order)
            place = f"../libraries/{library.page}.md#{why.lower()}"
            failing.setdefault(row.case, {}).setdefault(library.label, place)
    chapters: dict[str, list[Case]] = {}
    for case in cases:
        chapters.setdefault(case.id.partition("/")[0], []).append(case)
    for chapter, those in sorted(chapters.items()):
        lines = [f"# Cases: {chapter}", "", "`mha-conformance show CASE` prints one in full.", ""]
        for case in those:
            lines += _entry(case, failing.get(case.id, {}), requirements)
        yield f"{FOLDER}/{chapter}.md", "\n".join(lines) + "\n"
    table = [f"| [{name}]({name}.md) | {len(those)} |" for name, those in sorted(chapters.items())]
    head = ["# Cases", "", f"{len(cases)} cases, by chapter.", "", "| chapter | cases |", "|---|---|"]
    yield f"{FOLDER}/index.md", "\n".join([*head, *table]) + "\n"


def _entry(case: Case, failing: Mapping[str, str], requirements: dict[str, Requirement]) -> list[str]:
    name = case.id.partition("/")[2]
    covers = [
        f"[{r.label}](../spec/{r.file}#{r.anchor})"
        for r in (requirements.get(id_) for id_ in case.covers)
        if r is not None
    ]
    shapes = ", ".join(f"{key} {'x'.join(map(str, x.shape)) or 'scalar'}" for key, x in case.inputs.items())
    options = "".join(f", `{key}={value}`" for key, value in case.options.items())
    lines = [f"### {case.id} {{#{name}}}", "", case.note, ""]
    lines += [f"- {case.operation}: {shapes}{options}", f"- covers {', '.join(covers)}"]
    if failing:
        who = ", ".join(f"[{label}]({place})" for label, place in failing.items())
        lines.append(f"- fails in {who}")
    return [*lines, ""]
