"""All that the site says, as JSON for others to build on (spec/schema/site.json)."""

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.telling.requirements import Requirement
from conformance.telling.site.libraries import Libraries, Library, Standing
from conformance.vectors.case import Case
from conformance.version import SPEC_VERSION, SUITE_VERSION

SITE_VERSION = 1


def document(
    of: Libraries, requirements: Sequence[Requirement], covering: Mapping[str, Sequence[Case]]
) -> dict[str, Any]:
    """Requirements with the cases that cover them, and each library's newest run."""
    return {
        "site_version": SITE_VERSION,
        "suite_version": SUITE_VERSION,
        "spec_version": SPEC_VERSION,
        "requirements": [
            {
                "id": r.id,
                "name": r.name,
                "title": r.title,
                "level": r.level,
                "features": list(r.features),
                "since": r.since,
                "page": f"spec/{r.chapter}/#{r.anchor}",
                "cases": [case.id for case in covering.get(r.id, ())],
            }
            for r in requirements
            if not r.withdrawn
        ],
        "libraries": [_library(library, of.history[library.name]) for library in of.newest],
    }


def _library(library: Library, history: Sequence[Library]) -> dict[str, Any]:
    return {
        "name": library.name,
        "version": library.version,
        "page": f"libraries/{library.page}/",
        "accuracy": library.report.target.accuracy,
        "vectors_sha256": library.report.vectors_sha256,
        "environment": dict(library.report.environment),
        "dtypes": list(library.dtypes),
        "passed": library.passed,
        "failing": len(library.failing),
        "profiles": dict(library.report.profiles),
        "features": {name: _standing(s) for name, s in library.features.items()},
        "requirements": {name: _standing(s) for name, s in library.requirements.items()},
        "reasons": [
            {"reason": kind.reason, "report": kind.report, "tests": len(kind.rows)} for kind in library.kinds
        ],
        "versions": [
            {"version": one.version, "passed": one.passed, "failing": len(one.failing)} for one in history
        ],
    }


def _standing(standing: Standing) -> dict[str, Any]:
    cases = list(dict.fromkeys(row.case for row in standing.failing))
    return {
        "outcome": standing.outcome,
        "tests": standing.tests,
        "failing": len(standing.failing),
        "cases": cases,
    }
