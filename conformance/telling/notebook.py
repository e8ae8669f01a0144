"""What a notebook shows of a report: status, counts, the mistakes that explain most, and the first failures."""

from html import escape

from conformance.telling.inventory import read_defects
from conformance.telling.report import Report
from conformance.telling.terminal import counted, safe, shorten

ROWS, CAUSES, CHARACTERS = 8, 3, 200
COLOURS = {"conformant": "#1a7f45", "non-conformant": "#b3261e", "incomplete": "#8a6100"}


def report_html(report: Report) -> str:
    """A fragment of a page; every text from elsewhere is escaped."""
    counts = ", ".join(f"{n} {verdict}" for verdict, n in report.summary.items() if n)
    failed = [row for row in report.results if row.failed]
    parts = [
        f"<p><b>{_text(report.target.name)}</b> is "
        f'<b style="color: {COLOURS[report.status]}">{report.status}</b>: {counts}</p>'
    ]
    parts += [f"<p>{_text(line)}</p>" for line in _causes(report)]
    if failed:
        rows = "".join(
            f"<tr><td>{_text(row.case)}</td><td>{_text(row.dtype)}</td><td>{_text(row.message)}</td></tr>"
            for row in failed[:ROWS]
        )
        parts.append(f"<table><tr><th>case</th><th>dtype</th><th>what is wrong</th></tr>{rows}</table>")
    if len(failed) > ROWS:
        parts.append(f"<p>... and {counted(len(failed) - ROWS, 'more failure')}</p>")
    return "".join(parts)


def _causes(report: Report) -> list[str]:
    """The mistakes that explain most, a sentence each."""
    found = {each for row in report.results for each in row.diagnosis}
    sentences = {defect.id: defect.sentence for defect in read_defects()} if found else {}
    first = sorted(found, key=lambda each: (-each.explains, each.defect))[:CAUSES]
    return [
        f"{sentences[each.defect]} This explains {each.explains} of {counted(each.of, 'failure')}."
        for each in first
        if each.defect in sentences
    ]


def _text(text: str) -> str:
    return escape(safe(shorten(text, CHARACTERS)))
