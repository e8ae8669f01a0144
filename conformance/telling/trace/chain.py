"""The chain of one requirement, from its text to the index: what stands, what is missing, what to do next."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from conformance.defects.record import UPDATE, Record
from conformance.telling.requirements import Requirement
from conformance.telling.trace import kills
from conformance.telling.trace.holes import place, statements
from conformance.telling.trace.index import stale
from conformance.telling.trace.links import Links
from conformance.vectors.case import Case
from conformance.vectors.generate.changed import differs
from conformance.vectors.generate.draft import Draft
from conformance.version import SPEC_VERSION

BUILD = "python -m conformance.vectors.generate --changed"
INDEX = "python -m conformance trace --write"
CASES, BANK, CHANGES = "conformance/vectors/generate/cases/", "conformance/defects/bank/", "CHANGELOG.md"
TWICE = "two cases are called "
RANGE = re.compile(r"\b([A-Z]+)-(\d+)(?: to \1-(\d+))?")


class SameIdError(ValueError):
    """Two declared cases have one ID."""


@dataclass(frozen=True)
class Link:
    """One link of the chain: what stands there, or what is missing and what to do next."""

    name: str
    found: str = ""
    missing: str = ""
    then: str = ""  # what to do where it is missing; a command begins with "python -m"


@dataclass(frozen=True)
class Chains:
    """All that the chains of a checkout are read from."""

    links: Links
    drafts: Sequence[Draft]
    record: Record
    changes: str  # the text of the change log
    compared: dict[tuple[int, int], tuple[Draft, Case, bool]] = field(default_factory=dict, repr=False)
    """Whether a draft and a case differ, by their identities: copies of the chains share it, as it takes seconds."""

    @cached_property
    def unbuilt(self) -> frozenset[str]:
        """Cases that are not stored as declared, or stored and no longer declared."""
        stored, declared = {case.id: case for case in self.links.cases}, {draft.id for draft in self.drafts}
        new = declared - stored.keys()
        kept = [draft for draft in self.drafts if draft.id in stored]
        differing = {draft.id for draft in kept if self._differs(draft, stored[draft.id])}
        return frozenset(new | differing | (stored.keys() - declared))

    def _differs(self, draft: Draft, case: Case) -> bool:
        key = (id(draft), id(case))
        if key not in self.compared:
            self.compared[key] = (draft, case, differs(draft, case))
        return self.compared[key][2]

    @cached_property
    def unknown(self) -> dict[str, list[str]]:
        """Case -> what its declaration covers and is no requirement."""
        known = {r.id for r in self.links.requirements}
        found = {draft.id: [name for name in draft.covers if name not in known] for draft in self.drafts}
        return {case: names for case, names in found.items() if names}

    def beside(self, names: Sequence[str]) -> list[str]:
        """What the chains of some requirements do not tell: other cases that are not built, IDs that are unknown."""
        told = {draft.id for draft in self.drafts if set(names) & {*draft.covers}}
        others = sorted(self.unbuilt - told)
        found = [f"{_some(others)} {'is' if len(others) == 1 else 'are'} not built as declared: {BUILD}"]
        return [
            *(found if others else []),
            *(
                f"{case} covers {', '.join(wrong)}, which is no requirement: correct its `covers` in {CASES}"
                for case, wrong in self.unknown.items()
            ),
        ]

    def of(self, name: str) -> list[Link]:
        """The links of the chain of a requirement, in the order in which they are made."""
        named = [r for r in self.links.requirements if r.id == name]
        if not named:
            return [
                Link(
                    "requirement",
                    missing="is in no chapter",
                    then=f'write `### {name} short name <a id="{name.lower()}"></a>` into its chapter in spec/, '
                    f"since {SPEC_VERSION}",
                )
            ]
        if named[0].withdrawn:
            return [Link("requirement", f"{place(named[0])}, withdrawn")]
        links = [
            self._requirement(named[0]),
            self._case(named[0]),
            self._defect(named[0]),
            self._kill(named[0]),
            self._change(named[0]),
            self._index(),
        ]
        return [link for link in links if link is not None]

    def _requirement(self, r: Requirement) -> Link:
        wrong = [hole.what for hole in statements(self.links.requirements) if hole.where == place(r)]
        if wrong:
            return Link("requirement", missing="; ".join(wrong), then=f"mend {place(r)}")
        return Link("requirement", f"{place(r)}, since {r.since}")

    def _case(self, r: Requirement) -> Link:
        cases, tests = self.links.cases_of.get(r.id, []), self.links.tests_of.get(r.id, [])
        new = [draft.id for draft in self.drafts if r.id in draft.covers and draft.id in self.unbuilt]
        if new:
            return Link("case", missing=f"{_some(new)} not built as declared", then=BUILD)
        if cases:
            return Link("case", _some(cases))
        if r.untested and (tests or r.level != "MUST"):
            return Link("case", f"none, since {r.untested}; {_some(tests) if tests else 'no test'}")
        if r.untested:
            return Link(
                "case", missing="no test", then=f'mark one in tests/ with `pytest.mark.covers("{r.id}")`'
            )
        if r.level != "MUST":
            return Link("case", f"none, and {r.level} needs none")
        return Link("case", missing="none", then=f"declare one in {CASES} whose `covers` names {r.id}")

    def _defect(self, r: Requirement) -> Link | None:
        defects = self.links.defects_of.get(r.id, [])
        if defects:
            return Link("defect", _some(defects))
        if r.untested or r.level == "MAY":
            return None
        return Link("defect", missing="none", then=f"add one in {BANK} whose `violates` names {r.id}")

    def _kill(self, r: Requirement) -> Link | None:
        names = self.links.defects_of.get(r.id, [])
        those = [defect for defect in self.links.defects if defect.id in names]
        if not those:
            return None
        kept = {name: of for name, of in self.record.kills.items() if name in names}
        wrong = {
            hole.where.partition(" ")[2] for hole in kills.recorded(self.links, Record(kills=kept), those)
        }
        if wrong:
            missing = f"no case on record, at some dtype at least, for {_some(sorted(wrong))}"
            return Link("kill", missing=missing, then=UPDATE)
        if not kills.guarded(self.links, self.record, r):
            then = (
                f"let a case that shows one of them cover {r.id}, or add a defect that violates {r.id} alone"
            )
            return Link("kill", missing=kills.UNGUARDED, then=then)
        return Link("kill", f"cases on record for {'each' if len(those) > 1 else 'it'}")

    def _change(self, r: Requirement) -> Link | None:
        """What is of this version is told of in the change log."""
        if r.since != SPEC_VERSION:
            return None
        part = re.search(
            rf"^### Specification {re.escape(SPEC_VERSION)}\n(.*?)(?=^##|\Z)", self.changes, re.M | re.S
        )
        if part and r.id in set(mentioned(part[1])):
            return Link("change log", f"{CHANGES}, Specification {SPEC_VERSION}")
        return Link(
            "change log",
            missing=f"{r.id} is not named",
            then=f"name it in {CHANGES} under Specification {SPEC_VERSION}",
        )

    def _index(self) -> Link:
        if stale(self.links):
            return Link("index", missing="spec/INDEX.md is not as it would be written now", then=INDEX)
        return Link("index", "spec/INDEX.md")


def mentioned(text: str) -> Iterator[str]:
    """The requirements that a text names, those of `GRAD-1 to GRAD-15` between them too."""
    for chapter, first, last in RANGE.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{chapter}-{number}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def read_chains(links: Links, record: Record) -> Chains:
    """The chains of the checkout that some links are of.

    Raises:
        SameIdError: two declared cases have one ID.
    """
    from conformance.vectors.generate.cases import drafts

    changes: Path = links.spec.parent / CHANGES
    try:
        declared = list(drafts())
    except ValueError as error:
        if not str(error).startswith(TWICE):
            raise
        raise SameIdError(f"{error}: give the new one another ID") from error
    return Chains(links, declared, record, changes.read_text("utf-8") if changes.is_file() else "")
