"""What the page says of each run as a whole."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from conformance.defects.defect import Defect
from conformance.names import MHA_VJP, PROFILES, SDPA_VJP
from conformance.telling.diagnosis import told_splits
from conformance.telling.page.prose import inline
from conformance.telling.report import FeatureResult, Report
from conformance.telling.requirement_ranking import blame
from conformance.telling.requirements import Requirement
from conformance.telling.terminal import shorten

MOST_BLAMED = 8
GRADIENTS = (SDPA_VJP, MHA_VJP)
NAME, PLACE = 60, 300
"""Characters that are shown of a name, and of a path or a command's word."""


@dataclass(frozen=True)
class Blamed:
    """A requirement that is broken."""

    id: str
    title: Markup
    failed: int
    tested: int


@dataclass(frozen=True)
class Suspect:
    """What explains failures: a known defect, or a sentence without one."""

    defect: str  # empty where there is none
    sentence: str
    explains: int
    of: int


@dataclass(frozen=True)
class Run:
    """One report."""

    number: int  # from 1
    name: str
    version: str
    accuracy: str
    source: str
    argument: str  # the target, as it is typed after `mha-conformance run`
    status: str
    summary: tuple[tuple[str, int], ...]
    fused: str  # how many of the passing rows meet the stricter policy as well
    profiles: tuple[tuple[str, str], ...]
    features: tuple[tuple[str, FeatureResult], ...]
    facts: tuple[tuple[str, str], ...]
    blamed: tuple[Blamed, ...]
    conditions: tuple[Markup, ...]  # what failing rows have in common, a sentence each
    suspects: tuple[Suspect, ...]
    untested: tuple[str, ...]
    same_vectors: bool


def run_of(
    number: int,
    report: Report,
    texts: Mapping[str, Requirement],
    defects: Mapping[str, Defect],
    vectors_sha256: str,
) -> Run:
    """One report as the page shows it."""
    target = report.target
    return Run(
        number=number,
        name=shorten(target.name, NAME),
        version=shorten(target.version or "", NAME),
        accuracy=target.accuracy,
        source=shorten(target.source, PLACE),
        status=report.status,
        summary=tuple((v, n) for v, n in report.summary.items() if n or v in ("pass", "fail")),
        fused=_fused(report),
        profiles=tuple(
            (name, "not supported" if _lacks(report, name) else word)
            for name, word in report.profiles.items()
        ),
        argument=_argument(report),
        features=tuple(report.features.items()),
        facts=_facts(report),
        blamed=tuple(
            Blamed(b.requirement, _title(texts.get(b.requirement)), b.failed, b.tested)
            for b in blame(report.results)[:MOST_BLAMED]
        ),
        conditions=tuple(inline(shorten(line, PLACE)) for line in told_splits(report.splits)),
        suspects=suspects(report, defects),
        untested=report.untested_requirements,
        same_vectors=report.vectors_sha256 == vectors_sha256,
    )


def apart(runs: Sequence[Run]) -> list[Run]:
    """The runs; those that share a name are called by where they come from."""
    names = [run.name for run in runs]
    return [
        replace(run, name=shorten(run.source, NAME)) if names.count(run.name) > 1 else run for run in runs
    ]


def _lacks(report: Report, profile: str) -> bool:
    """Whether a target does not support a feature of a profile, which is then no question of right or wrong."""
    if profile == "training" and not any(r.executed and r.operation in GRADIENTS for r in report.results):
        return True
    status = {name: feature.status for name, feature in report.features.items()}
    return any(status.get(name) == "not claimed" for name in PROFILES.get(profile, ()))


def _argument(report: Report) -> str:
    source = shlex.quote(shorten(report.target.source, PLACE))
    return f"--command {source}" if "--command" in report.command else source


def suspects(report: Report, defects: Mapping[str, Defect]) -> tuple[Suspect, ...]:
    """What the diagnosis says without a known mistake, then every defect that some row names, by what it explains."""
    found = {each for row in report.results for each in row.diagnosis}
    noted = [Suspect("", shorten(n["sentence"], PLACE), n["explains"], n["of"]) for n in report.notes]
    named = [
        Suspect(shorten(d.defect, NAME), sentence_of(d.defect, defects), d.explains, d.of)
        for d in sorted(found, key=lambda d: (-d.explains, d.of, d.defect))
    ]
    return tuple([*noted, *named][:MOST_BLAMED])


def sentence_of(defect: str, defects: Mapping[str, Defect]) -> str:
    """What was done wrong, if the bank of this version knows it."""
    return defects[defect].sentence if defect in defects else ""


def _title(requirement: Requirement | None) -> Markup:
    return Markup("") if requirement is None else inline(requirement.title)


def _fused(report: Report) -> str:
    if report.target.accuracy != "eager":
        return ""
    graded = [row.grade for row in report.results if row.grade is not None]
    return (
        f"{graded.count('fused')} of {len(graded)} measured passes meet the bounds of fused too"
        if graded
        else ""
    )


def _facts(report: Report) -> tuple[tuple[str, str], ...]:
    command: Sequence[str] = [shorten(word, PLACE) for word in report.command]
    seconds = sum(row.seconds for row in report.results)
    return (
        *((("ended early", shorten(report.gave_up, PLACE)),) if report.gave_up else ()),
        ("command", " ".join(command)),
        ("source", shorten(report.target.source, PLACE)),
        ("suite", report.suite_version),
        ("specification", report.spec_version),
        ("vectors", report.vectors_sha256),
        ("time in the target", f"{seconds:.1f} s"),
        *((shorten(name, NAME), shorten(text, PLACE)) for name, text in report.environment.items()),
    )
