"""The picture of README: a run that finds a wrong scale, in a terminal and in the report. From a real run, as SVG.

python tests/picture.py FILE.svg, which `nox -s readme` calls.
"""

import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from conformance.defects.bank import DEFECTS
from conformance.judging.verdict import Row
from conformance.running.protocol import decode_array
from conformance.telling.report import Report, read_report
from conformance.vectors.load import load_vectors

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "spec" / "pictures" / "first-run.svg"
RIGHT = "np.sqrt(query.shape[-1], dtype=np.float32)"
CASE, HEAD = "attention/plain", (1, 1)  # what the heat maps show, and the batch entry and head of it
COLUMNS, LINE, LEFT, WIDTH, HEIGHT = 66, 17, 24, 1120, 452
MIDDLE = 540
COLOURS = {"fail ": "#ff8f85", "diagnosis": "#ffd479", "non-conformant": "#ff8f85", "$": "#7fd1ff"}


def wrong_attention() -> str:
    """The function of README without its square root."""
    readme = (ROOT / "README.md").read_text("utf-8")
    (text,) = re.findall(r"<!-- attention.py -->\n```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert RIGHT in text
    return text.replace(RIGHT, "query.shape[-1]")


def run(folder: Path) -> tuple[str, Report]:
    """What the command prints, and its report."""
    (folder / "attention.py").write_text(wrong_attention(), "utf-8")
    words = ["run", "attention.py:attention", "--fresh", "off", "--report", "mine.json"]
    command = [sys.executable, "-m", "conformance", *words]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "COLUMNS": "120"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    return done.stderr + done.stdout, read_report(folder / "mine.json")


def terminal(printed: str) -> list[str]:
    """The lines that the picture shows, folded; `...` where some are left out."""
    lines = printed.splitlines()
    fail = next(n for n, line in enumerate(lines) if line.startswith("fail ") and "ATT-3" in line)
    diagnosis = next(line for line in lines if line.startswith("diagnosis: "))
    rows = [[cell.strip() for cell in line.split("│")[1:]] for line in lines if line.startswith("│ ")]
    rows = [[f"{cells[0]:<34}", *cells[1:]] for cells in rows if "-" in cells[0]]
    shown = [
        "$ mha-conformance run attention.py:attention",
        "...",
        lines[fail],
        *lines[fail + 1 : fail + 2],
        "...",
        "failing requirements, most informative first",
        *(
            f"  {' '.join(cells[:2])}"
            for cells in rows
            if cells[0].startswith(("ATT-1 ", "ATT-3 ", "HEAD-2 "))
        ),
        "",
        diagnosis,
        "",
        lines[-1]
        if lines[-1].startswith("non-conformant")
        else next(x for x in lines if x.startswith("non-")),
    ]
    return [part for line in shown for part in folded(line)]


def folded(line: str) -> list[str]:
    """A line as a terminal of that width shows it."""
    start = " " * (len(line) - len(line.lstrip()))
    inner = start or "  "
    return wrap(line, COLUMNS, subsequent_indent=inner, drop_whitespace=True, replace_whitespace=False) or [
        ""
    ]


def text(x: float, y: float, words: str, colour: str, size: float = 13, extra: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size:g}" {extra}>{escape(words)}</text>'


def heat(x: float, y: float, title: str, values: Any, tint: str, cell: int = 30) -> list[str]:
    """A matrix (rows, columns) as squares, the darker the farther from zero."""
    top = float(np.abs(values).max()) or 1.0
    drawn = [text(x, y - 10, title, "#3b4252", 13, 'font-weight="600"')]
    for (row, column), value in np.ndenumerate(values):
        strength = abs(float(value)) / top
        colour = tint if value >= 0 else "#2f6fb3"
        place = f'x="{x + column * cell:g}" y="{y + row * cell:g}" width="{cell - 2}" height="{cell - 2}"'
        drawn.append(f'<rect {place} rx="3" fill="{colour}" fill-opacity="{0.08 + 0.9 * strength:.2f}"/>')
    return drawn


def matrices(row: Row) -> dict[str, Any]:
    """Expected and returned values of one head, and the error."""
    golden = next(case for case in load_vectors().cases if case.id == row.case).expected["output"]
    (got,) = row.got
    entry = {"dtype": got.dtype, "shape": list(got.shape), "data": got.data}
    returned = decode_array(got.output, entry).astype(np.float64)[HEAD]
    expected = golden.hi[HEAD]
    return {"expected": expected, "returned": returned, "error": np.abs(returned - expected)}


def picture(printed: str, report: Report) -> str:
    """The SVG: the terminal on the left, the report on the right."""
    row = next(row for row in report.results if row.case == CASE)
    mono = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    parts = [
        f"<svg {head} font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">",
        "<title>mha-conformance finds a wrong scale and names it, in a terminal and in its report</title>",
        f'<rect width="{MIDDLE}" height="{HEIGHT}" rx="12" fill="#1b2130"/>',
        *(
            f'<circle cx="{26 + 20 * n}" cy="22" r="6" fill="{c}"/>'
            for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        f'<g font-family="{mono}" style="white-space:pre">',
    ]
    colour, y = "#9aa5b8", 60.0
    for line in terminal(printed):
        if not line.startswith("  "):
            colour = next((c for word, c in COLOURS.items() if line.startswith(word)), "#9aa5b8")
        parts.append(text(LEFT, y, line, colour, 12.5))
        y += LINE
    parts.append("</g>")
    parts += page(report, row)
    return "\n".join([*parts, "</svg>", ""])


def page(report: Report, row: Row) -> list[str]:
    """The right half."""
    x, counts = MIDDLE + 44, report.summary
    defect = row.diagnosis[0].defect
    sentence = next(each.sentence for each in DEFECTS if each.id == defect)
    parts = [
        f'<rect x="{MIDDLE + 16}" width="{WIDTH - MIDDLE - 16}" height="{HEIGHT}" rx="12" '
        'fill="#ffffff" stroke="#d5dbe6"/>',
        text(x, 44, "attention is wrong", "#1b2130", 22, 'font-weight="700"'),
        text(x, 72, sentence, "#1b2130", 15),
        text(x, 94, f"explains {report.failed} of {report.failed} failures · {defect}", "#5b6577", 13),
    ]
    shown = {"pass": "#2e9e5b", "fail": "#d64545", "unsupported": "#c9d0dc"}
    total, left, wide = sum(counts[name] for name in shown), float(x), WIDTH - x - 28
    for name, colour in shown.items():
        size = wide * counts[name] / total
        parts.append(f'<rect x="{left:.1f}" y="112" width="{size:.1f}" height="16" fill="{colour}"/>')
        left += size
    words = " · ".join(f"{counts[name]} {name}" for name in shown)
    parts.append(text(x, 150, words, "#5b6577", 13))
    batch, number = HEAD
    parts.append(
        text(x, 192, f"{CASE} · output, batch {batch}, head {number}", "#1b2130", 14, 'font-weight="600"')
    )
    tints = {"expected": "#b3541e", "returned": "#b3541e", "error": "#7a1fa2"}
    for place, (title, values) in enumerate(matrices(row).items()):
        parts += heat(x + place * 172, 236, title, values, tints[title])
    parts.append(text(x, 410, "rows: queries · columns: width", "#5b6577", 12))
    assert row.error_over_bound is not None
    parts.append(
        text(x, 430, f"the largest error is {row.error_over_bound:,.0f} times its tolerance", "#5b6577", 12)
    )
    return parts


def main(path: Path) -> int:
    """Runs the suite and writes the picture."""
    with tempfile.TemporaryDirectory() as folder:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture(*run(Path(folder))), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
