"""Tables over runs of several targets: how each feature fares.

python tests/third_party/table.py [--write] REPORT.json...

With --write they go into README, which shows some of the targets and few rows, and into spec/found.md.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.names import FEATURES

ROWS = ("every case", "no feature", *FEATURES)
KINDS = {"pass": "pass", "xfail": "xfail", "unsupported": "unsupported"}
"""Verdict -> what is counted; anything else is counted as `fail`."""


def counts(results: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """Row of the table -> how many results of each kind; a result counts for each of its features."""
    found: dict[str, Counter[str]] = {row: Counter() for row in ROWS}
    for result in results:
        kind = KINDS.get(result["verdict"], "fail")
        for row in ("every case", *(result["features"] or ("no feature",))):
            found[row][kind] += 1
    return found


def cell(found: Counter[str]) -> str:
    """Passes, known failures after a slash, and failures nobody knows of; - where nothing was executed."""
    if not found["pass"] + found["xfail"] + found["fail"]:
        return "-"
    known = f" / {found['xfail']}" if found["xfail"] else ""
    return f"{found['pass']}{known}" + (f" **{found['fail']} fail**" if found["fail"] else "")


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a row a feature, a column a target."""
    columns = [counts(report["results"]) for report in reports]
    lines = [
        "| passes / known failures | "
        + " | ".join(f"{report['target']['name']} {report['target']['version']}" for report in reports)
        + " |",
        "|---|" + "---|" * len(reports),
    ]
    lines += [f"| {row} | {' | '.join(cell(column[row]) for column in columns)} |" for row in ROWS]
    unsupported = [str(column["every case"]["unsupported"]) for column in columns]
    return "\n".join([*lines, f"| unsupported | {' | '.join(unsupported)} |"])


SHOWN = ("every case", "no feature", "mask", "is_causal", "gqa", "empty")
"""Rows of README, and below them one of serving."""
COLUMNS = (
    "torch-sdpa-math",
    "torch-sdpa-flash",
    "torch-flex",
    "jax-nn",
    "onnxruntime",
    "onnxruntime-gqa",
    "transformers-sdpa",
    "ggml",
)
"""Targets of README."""
SERVING = ("segments", "packed", "paged", "append", "latent", "merge")
"""Features of serving kernels."""
WIDE = 8
"""Columns of a table."""
ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"(<!-- libraries -->\n).*?(<!-- end of libraries -->\n)", re.DOTALL)


def bold(text: str) -> str:
    """A cell with its known failures in bold."""
    return re.sub(r" / (\d+)$", r" / **\1**", text)


def of_serving(found: Mapping[str, Counter[str]]) -> str:
    """What of serving a target has, each with its cell; - where it has none."""
    cells = [(feature, bold(cell(found[feature]))) for feature in SERVING]
    return ", ".join(f"{feature} {text}" for feature, text in cells if text != "-") or "-"


def in_prose(reports: Sequence[Mapping[str, Any]], rows: Iterable[str], serving: bool = False) -> str:
    """The table as a page has it: known failures in bold, and rows of which some target supports something."""
    columns = [counts(report["results"]) for report in reports]
    names = [f"{report['target']['name']} {report['target']['version'].split('+')[0]}" for report in reports]
    lines = [f"| pass / known to fail | {' | '.join(names)} |", "| --- |" + " --- |" * len(reports)]
    for row in rows:
        cells = [bold(cell(column[row])) for column in columns]
        if set(cells) != {"-"}:
            lines.append(f"| {row} | {' | '.join(cells)} |")
    if serving:
        lines.append(f"| serving | {' | '.join(of_serving(column) for column in columns)} |")
    return "\n".join(lines) + "\n"


def write(reports: Sequence[Mapping[str, Any]]) -> None:
    """Puts the tables where the pages have a place for them."""
    parts = [in_prose(reports[at : at + WIDE], ROWS) for at in range(0, len(reports), WIDE)]
    shown = [report for name in COLUMNS for report in reports if report["target"]["source"] == name]
    front = in_prose(shown, SHOWN, serving=True)
    for page, text in (("README.md", front), ("spec/found.md", "\n".join(parts))):
        path = ROOT / page
        old = path.read_text("utf-8")
        new = PLACE.sub(lambda match, text=text: f"{match[1]}{text}{match[2]}", old)  # type: ignore[misc]
        path.write_text(new, "utf-8")


def main(words: Sequence[str]) -> int:
    """Prints the table, or writes those of the pages; 2 without reports."""
    paths = [word for word in words if word != "--write"]
    if not paths:
        print("give one or more reports", file=sys.stderr)
        return 2
    reports = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    if "--write" in words:
        write(reports)
    else:
        print(table(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
