"""What fails, in a test report: everything that is known of it, and where to read on."""

from functools import cache

from conformance.judging.verdict import Row
from conformance.resources import spec_directory
from conformance.telling.report import Report
from conformance.telling.requirements import Requirement, named_all, read_requirements
from conformance.telling.terminal import inert
from conformance.vectors.case import Case


def assertion(case: Case, row: Row) -> str:
    """A failed row in full: the verdict first, on a line that can stand alone."""
    lines = [
        f"{row.verdict}: {row.message} ({named_all(row.covers)})",
        f"  case      {case.id} {row.dtype}: {case.note}",
    ]
    for name in row.covers:
        if found := _requirements().get(name):
            lines += [
                f"  requires  {found.label}: {found.title}",
                f"            {spec_directory() / found.file}#{name.lower()}",
            ]
    if row.worst is not None:
        index = ", ".join(map(str, row.worst.index))
        lines += [
            f"  got       {row.worst.got!r} at {row.worst.output}[{index}]",
            f"  expected  {row.worst.expected!r}",
            f"  allowed   +- {row.worst.allowed:.3g}",
        ]
    lines += [
        f"  diagnosis {found.defect} explains {found.explains} of {found.of} failures"
        for found in row.diagnosis
    ]
    lines.append(f"  more      mha-conformance show {case.id}")
    return "\n".join(inert(line) for line in lines)


def failure_text(report: Report) -> str:
    """Every distinct failure of a report, for a test that fails by it."""
    lines = []
    for row in report.results:
        if row.replay:
            lines += [
                f"{row.verdict}: {row.message} ({named_all(row.covers)})",
                f"  reduced   {row.reduced}",
                f"  fails if  {row.fails_if}",
                *(
                    f"  diagnosis {each.defect} explains {each.explains} of {each.of}"
                    for each in row.diagnosis
                ),
                f"  more      mha-conformance explore {report.target.source} --replay {row.replay}",
            ]
    drawing = report.drawing
    seed = f"  seed      {drawing.seed}, {drawing.judged} calls judged" if drawing else ""
    return "\n".join(inert(line) for line in [*lines, seed])


@cache
def _requirements() -> dict[str, Requirement]:
    return {requirement.id: requirement for requirement in read_requirements()}
