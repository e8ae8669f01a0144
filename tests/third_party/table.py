"""One table over runs of several targets: how each feature fares.

python tests/third_party/table.py REPORT.json...
"""

import json
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


def main(paths: Sequence[str]) -> int:
    """Prints the table; 2 without reports."""
    if not paths:
        print("give one or more reports", file=sys.stderr)
        return 2
    print(table([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
