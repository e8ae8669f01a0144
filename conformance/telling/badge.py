"""A run as a badge: a picture that needs no server, or the JSON that shields.io reads (CONF-11)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.names import MHA, PROFILES, SDPA
from conformance.running.quick import QUICK
from conformance.running.select import DECLARED, in_profile
from conformance.telling.report import Report
from conformance.telling.terminal import safe, shorten

COLOURS = {"conformant": "brightgreen", "incomplete": "yellow", "non-conformant": "red"}
KNOWN = "yellowgreen"
"""The colour where a baseline explains every failure of a whole run."""
HEX = {"brightgreen": "#2c7a1f", "yellowgreen": "#5b7a12", "yellow": "#8a6500", "red": "#b3261e"}
"""The same colours in the picture, dark enough for white letters."""
LETTER, NARROW, MARGIN = 7.0, 4.0, 8
"""Widths in a picture: of a letter, of a thin one, and next to the text."""
LONGEST = 200

PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{name}">
<title>{title}</title>
<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)">
<path fill="#444" d="M0 0h{left}v20H0z"/><path fill="{fill}" d="M{left} 0h{right}v20H{left}z"/>
</g>
<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{label_x}" y="14" textLength="{label_width}" lengthAdjust="spacingAndGlyphs">{label}</text>
<text x="{message_x}" y="14" textLength="{message_width}" lengthAdjust="spacingAndGlyphs">{message}</text>
</g>
</svg>
"""


@dataclass(frozen=True)
class Badge:
    """What a badge says."""

    label: str
    message: str  # short
    colour: str  # a name of shields.io
    claim: str  # in full


def check_ending(path: Path) -> None:
    """Sees to it that the name of a file says which form is wanted.

    Raises:
        UsageError: it ends neither in `.svg` nor in `.json`.
    """
    if path.suffix.lower() not in (".svg", ".json"):
        raise UsageError(
            f"--badge {str(path)!r} has an unknown ending: give a name that ends in .svg, or in .json for shields.io"
        )


def badge_writer(path: Path, profile: str | None = None) -> Callable[[Report], str]:
    """What makes the text of a file: a picture for `.svg`, else the endpoint document."""
    return partial(picture if path.suffix.lower() == ".svg" else badge, profile=profile)


def badge(report: Report, profile: str | None = None) -> str:
    """The endpoint document of a report; with a profile it speaks of that."""
    said = badge_of(report, profile)
    document = {"schemaVersion": 1, "label": said.label, "message": said.message, "color": said.colour}
    return json.dumps(document, indent=1) + "\n"


def picture(report: Report, profile: str | None = None) -> str:
    """The same as SVG, with the claim in full as its title."""
    said = badge_of(report, profile)
    left, right = (round(_width(text)) + 2 * MARGIN for text in (said.label, said.message))
    return PICTURE.format(
        width=left + right,
        left=left,
        right=right,
        fill=HEX[said.colour],
        label=escape(said.label),
        message=escape(said.message),
        name=escape(f"{said.label}: {said.message}"),
        title=escape(said.claim),
        label_x=left / 2,
        message_x=left + right / 2,
        label_width=left - 2 * MARGIN,
        message_width=right - 2 * MARGIN,
    )


def badge_of(report: Report, profile: str | None = None) -> Badge:
    """What a badge says of a report; with a profile it speaks of that."""
    status = report.profiles[profile] if profile else report.status
    rows = [
        row for row in report.results if profile is None or in_profile(row.operation, row.features, profile)
    ]
    executed = [row for row in rows if row.executed]
    share = f"{sum(row.passed for row in executed)}/{len(executed)}"
    only = str((report.options or {}).get("op") or "")  # the run was of one operation
    message, colour = " ".join(filter(None, (only, profile, share))), COLOURS[status]
    if status == "conformant":
        message = f"{' '.join(filter(None, (only, profile or ('' if only else _met(report) or 'conformant'))))} 100 %"
    elif status == "incomplete":
        message = f"{message} incomplete"
    elif _explained(report, rows, profile):
        known = sum(row.failed for row in rows)
        message = f"{' '.join(filter(None, (only, profile))) or 'conformant'} but for {known} known"
        colour = KNOWN
    return Badge(
        label=safe(f"attention spec {shorten(report.spec_version, 20)}"),
        message=safe(message),
        colour=colour,
        claim=safe(shorten(_claim(report, status, profile), LONGEST)),
    )


def _explained(report: Report, rows: Sequence[Row], profile: str | None) -> bool:
    """Whether a baseline knows all that fails, and nothing that is claimed or asked for was left out."""
    options = report.options or {}
    narrowed = report.options is None or any(options.get(name) for name in ("k", "feature", "shard"))
    narrowed = narrowed or options.get("profile") == QUICK
    if narrowed or not report.ended or not report.as_expected:
        return False
    claimed = {name for name, feature in report.features.items() if feature.status != "not claimed"}
    operations = {row.operation for row in rows if row.executed}
    if any(
        not row.executed
        and row.operation in operations
        and set(row.features) <= claimed
        and not row.message.startswith(DECLARED)
        for row in rows
    ):
        return False
    trained = all(f"{each}_vjp" in operations for each in (SDPA, MHA) if each in operations)
    return profile is None or (set(PROFILES[profile]) <= claimed and (profile != "training" or trained))


def _claim(report: Report, status: str, profile: str | None) -> str:
    """The claim in full: version, profile or features, dtypes, accuracy."""
    only = (report.options or {}).get("op")
    met = f"profile {profile}" if profile else "" if only else _met_words(report)
    dtypes = ", ".join(dict.fromkeys(row.dtype for row in report.results if row.executed))
    what = (
        f"spec {report.spec_version}",
        f"only {only}" if only else "",
        met,
        dtypes,
        report.target.accuracy,
    )
    return f"{status}: {'; '.join(filter(None, what))}"


def _met(report: Report) -> str:
    """The profiles that are met, the wider ones in place of those that they hold."""
    met = [name for name in PROFILES if report.profiles.get(name) == "conformant"]
    if "full" in met:
        return "full"
    return ", ".join(met[1:] if len(met) > 1 and met[0] == "core" else met)


def _met_words(report: Report) -> str:
    """What a badge without a profile claims: the profiles that are met, else the features."""
    met = [name for name in PROFILES if report.profiles.get(name) == "conformant"]
    if "full" in met:
        met = ["full"]
    if met:
        return f"profile{'s' if len(met) > 1 else ''} {', '.join(met)}"
    features = [name for name, result in report.features.items() if result.status == "conformant"]
    return f"features {', '.join(features)}" if features else ""


def _width(text: str) -> float:
    """About how wide a text is at this size; the picture then has it be just that."""
    return sum(NARROW if character in "fijlrtI1.,:/ " else LETTER for character in text)
