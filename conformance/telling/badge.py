"""A run as a badge: the JSON that shields.io reads from an address, and what it may claim (CONF-11)."""

import json

from conformance.names import PROFILES
from conformance.telling.report import Report
from conformance.telling.text import safe, shorten

COLOURS = {"conformant": "brightgreen", "incomplete": "yellow", "non-conformant": "red"}


def badge(report: Report, profile: str | None = None) -> str:
    """The endpoint document of a report; with a profile it speaks of that."""
    status = report.profiles[profile] if profile else report.status
    what = [f"spec {report.spec_version}", *([f"profile {profile}"] if profile else _met(report))]
    what += [
        ", ".join(dict.fromkeys(row.dtype for row in report.results if row.executed)),
        report.target.accuracy,
    ]
    document = {
        "schemaVersion": 1,
        "label": "attention",
        "message": safe(shorten(f"{status}: {'; '.join(filter(None, what))}", 200)),
        "color": COLOURS[status],
    }
    return json.dumps(document, indent=1) + "\n"


def _met(report: Report) -> list[str]:
    """What a badge without a profile claims: the profiles that are met, else the features."""
    met = [name for name in PROFILES if report.profiles.get(name) == "conformant"]
    if "full" in met:
        met = ["full"]
    features = [name for name, result in report.features.items() if result.status == "conformant"]
    if met:
        return [f"profile{'s' if len(met) > 1 else ''} {', '.join(met)}"]
    return [f"features {', '.join(features)}"] if features else []
