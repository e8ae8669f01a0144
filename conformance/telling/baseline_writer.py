"""Writes a baseline of what failed, for somebody to say why."""

import json

from conformance.running.baseline import BASELINE_VERSION, baseline_of
from conformance.telling.report import Report
from conformance.telling.terminal import safe, shorten

HEAD = """\
# Known failures of {name}. Every entry needs a reason; a `report` is the address of a public one.
baseline_version = {version}
"""
NONE = "known = []\n"
MESSAGE = 160


def baseline_text(report: Report) -> str:
    """The TOML of a baseline that knows every failure of a report; reasons are empty unless one knew them."""
    parts = [HEAD.format(name=safe(shorten(report.target.name)), version=BASELINE_VERSION)]
    for entry, row in baseline_of(report.results):
        lines = [f"# {safe(shorten(row.message, MESSAGE))}"] if row.message else []
        lines += ["[[known]]", f"case = {string(entry.case)}"]
        lines += [f"dtypes = [{', '.join(map(string, entry.dtypes))}]"]
        lines += [
            f"verdicts = [{', '.join(map(string, entry.verdicts))}]",
            f"reason = {string(entry.reason)}",
        ]
        lines += [f"report = {string(entry.report)}"] if entry.report else []
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts) if len(parts) > 1 else parts[0] + NONE


def string(text: str) -> str:
    """A basic string of TOML: that of JSON, but for DEL and surrogates, which TOML lacks and which are spelt out."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
