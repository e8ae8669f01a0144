"""Everything that is linked, read once; and the links, from both ends."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.defects.defect import Defect
from conformance.errors import UsageError
from conformance.resources import checkout_project, spec_directory
from conformance.telling.decisions import Decision, read_decisions
from conformance.telling.inventory import read_defects
from conformance.telling.requirements import GENERATED, Requirement, read_requirements
from conformance.telling.trace.test_markers import Mark, read_marks
from conformance.vectors import load
from conformance.vectors.case import Case


@dataclass(frozen=True)
class Links:
    """Each link is stated once, by the case, the defect or the test; the other way is computed."""

    spec: Path
    requirements: Sequence[Requirement]  # with duplicates
    decisions: Sequence[Decision]
    cases: Sequence[Case]
    defects: Sequence[Defect]
    marks: Sequence[Mark]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The texts that people write, by their path within spec/."""
        paths = [*self.spec.glob("*.md"), *self.spec.glob("decisions/*.md")]
        return {
            path.relative_to(self.spec).as_posix(): path.read_text("utf-8")
            for path in sorted(paths)
            if path.name != GENERATED
        }

    @cached_property
    def cases_of(self) -> dict[str, list[str]]:
        """Requirement -> cases."""
        return reverse((case.id, case.covers) for case in self.cases)

    @cached_property
    def defects_of(self) -> dict[str, list[str]]:
        """Requirement -> defects that break it for somebody to see."""
        return reverse((d.id, d.violates) for d in self.defects if d.equivalent is None)

    @cached_property
    def tests_of(self) -> dict[str, list[str]]:
        """Requirement -> tests."""
        return reverse((mark.test, mark.ids) for mark in self.marks)

    @property
    def words(self) -> str:
        """How much is linked."""
        tests = len({mark.test for mark in self.marks})
        return (
            f"{len(self.requirements)} requirements, {len(self.cases)} cases, {len(self.defects)} defects, "
            f"{tests} tests"
        )


def reverse(links: Any) -> dict[str, list[str]]:
    """Links the other way round, each once."""
    found: dict[str, list[str]] = {}
    for source, targets in links:
        for target in targets:
            sources = found.setdefault(target, [])
            if source not in sources:
                sources.append(source)
    return found


def read_links(
    spec: Path | None = None,
    cases: Sequence[Case] | None = None,
    defects: Sequence[Defect] | None = None,
    marks: Sequence[Mark] | None = None,
    reader: str = "trace",
) -> Links:
    """The links of a checkout; any part may be given instead. `reader` is the command that asks.

    Raises:
        UsageError: the tests are not there, since this is no checkout.
    """
    spec = spec or spec_directory()
    return Links(
        spec=spec,
        requirements=read_requirements(spec),
        decisions=read_decisions(spec),
        cases=load.load_vectors().cases if cases is None else cases,
        defects=read_defects() if defects is None else defects,
        marks=read_marks(tests_directory(reader)) if marks is None else marks,
    )


def tests_directory(reader: str) -> Path:
    """The tests of a checkout, for the command that reads them.

    Raises:
        UsageError: this is none.
    """
    project = checkout_project()
    if project is not None and (project.parent / "tests").is_dir():
        return project.parent / "tests"
    if _is_checkout(Path.cwd()):  # whose cases and defects may be others than those installed
        raise UsageError(
            f"{reader} reads the checkout that it runs from, and this is an installation apart from it; "
            f"run `python -m conformance {reader}` in here, or install with `pip install -e .` first"
        )
    raise UsageError(
        f"{reader} needs a checkout of the project, since the tests are not part of an installation; "
        f"in a checkout run `python -m conformance {reader}`"
    )


def _is_checkout(folder: Path) -> bool:
    """Whether a folder is the root of a checkout."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == "mha-conformance"


def links_json(links: Links) -> dict[str, Any]:
    """The links both ways, as JSON values."""
    return {
        "requirements": {
            r.id: {
                "name": r.name,
                "file": f"spec/{r.file}",
                "level": r.level,
                "features": list(r.features),
                "untested": r.untested or None,
                "decisions": [f"spec/{path}" for path in r.decisions],
                "cases": links.cases_of.get(r.id, []),
                "defects": links.defects_of.get(r.id, []),
                "tests": links.tests_of.get(r.id, []),
            }
            for r in links.requirements
        },
        "cases": {case.id: list(case.covers) for case in links.cases},
        "defects": {defect.id: list(defect.violates) for defect in links.defects},
        "tests": reverse((requirement, tests) for requirement, tests in links.tests_of.items()),
    }
