"""Copies reports to where one of each version of each library is kept: keep_reports.py FROM TO."""

import json
import re
import shutil
import sys
from pathlib import Path


def kept_name(report: Path) -> str:
    """The name of a report by target and version, safe on every file system."""
    target = json.loads(report.read_text("utf-8"))["target"]
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", f"{target['name']}-{target['version'] or 'unknown'}") + ".json"


def main(source: Path, to: Path) -> None:
    """A newer report of the same version takes the place of the old one."""
    to.mkdir(parents=True, exist_ok=True)
    for report in sorted(source.glob("*.json")):
        shutil.copyfile(report, to / kept_name(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
