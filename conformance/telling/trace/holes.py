"""What is missing or wrong in the links; each hole says where and what."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from conformance.names import FEATURES
from conformance.telling.requirements import GENERATED, LEVELS, Requirement
from conformance.telling.trace.index import stale
from conformance.telling.trace.links import Links
from conformance.telling.trace.prose_checks import dangling, loose_keywords, unknown_mentions
from conformance.version import SPEC_VERSION

MOST_WORDS = 4
"""Words of a short name."""


@dataclass(frozen=True)
class Hole:
    """One thing that is missing or wrong."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def holes(links: Links) -> Iterator[Hole]:
    """Every hole; none in a repository that is in order."""
    yield from statements(links.requirements)
    yield from _claims(links)
    yield from _coverage(links)
    yield from _names(links)
    yield from _decisions(links)
    for where, what in (*dangling(links), *loose_keywords(links), *unknown_mentions(links)):
        yield Hole(where, what)
    if problem := stale(links):
        yield Hole(f"spec/{GENERATED}", problem)


def place(requirement: Requirement) -> str:
    """Where a requirement stands."""
    return f"spec/{requirement.file}:{requirement.line}"


def version(text: str) -> tuple[int, ...]:
    """Sorts 1.2 before 1.10."""
    return tuple(map(int, text.split(".")))


def statements(requirements: Iterable[Requirement]) -> Iterator[Hole]:
    """Requirements that are not written as requirements are."""
    first: dict[str, Requirement] = {}
    for r in requirements:
        if r.id in first:
            yield Hole(place(r), f"{r.id} is a duplicate of {place(first[r.id])}; IDs are never used again")
        first.setdefault(r.id, r)
        if r.withdrawn:
            continue
        if len(r.name.split()) not in range(1, MOST_WORDS + 1):
            yield Hole(
                place(r),
                f"{r.id} needs a short name of 1 to {MOST_WORDS} words after its ID, as in "
                "`### ATT-3 default scale`",
            )
        if r.anchor != r.id.lower():
            yield Hole(place(r), f'{r.id} needs ` <a id="{r.id.lower()}"></a>` at the end of its heading')
        if not r.title:
            yield Hole(place(r), f"{r.id} has no sentence in bold")
        if r.level not in LEVELS:
            yield Hole(place(r), f"{r.id} has the level {r.level!r}, wanted one of {', '.join(LEVELS)}")
        if not r.since:
            yield Hole(place(r), f"{r.id} does not say its feature and since when it holds")
        elif version(r.since) > version(SPEC_VERSION):
            yield Hole(
                place(r),
                f"{r.id} holds since {r.since}, and the specification is {SPEC_VERSION}; write "
                f"`since {SPEC_VERSION}`, or raise SPEC_VERSION in conformance/version.py",
            )
        if any(note.startswith("untested") and not note.startswith("untested: ") for note in r.notes):
            yield Hole(place(r), f"{r.id} is untested and does not say why")
        if not r.rationale:
            yield Hole(place(r), f"{r.id} has no rationale")
    yield from _short_names(requirements)


def _short_names(requirements: Iterable[Requirement]) -> Iterator[Hole]:
    """Short names that two requirements of a chapter have."""
    first: dict[tuple[str, str], Requirement] = {}
    for r in requirements:
        other = first.setdefault((r.file, r.name.casefold()), r)
        if r.name and other.id != r.id:
            yield Hole(place(r), f"{r.id} has the short name of {other.id}, {r.name!r}; each needs its own")


def _claims(links: Links) -> Iterator[Hole]:
    """IDs that cases, defects and tests name and that are none, or no longer."""
    known = {r.id: r for r in links.requirements}
    named = [
        *((f"case {case.id}", case.covers) for case in links.cases),
        *((f"defect {defect.id}", defect.violates) for defect in links.defects),
        *((mark.where, mark.ids) for mark in links.marks),
    ]
    for where, ids in named:
        for name in ids:
            if name not in known:
                yield Hole(where, f"names {name}, which is no requirement{_nearest(name, known)}")
            elif known[name].withdrawn:
                yield Hole(where, f"names {name}, which is withdrawn")
    for mark in links.marks:
        if not mark.literal:
            yield Hole(
                mark.where, "covers does not write out its IDs as strings, so that they cannot be read"
            )


def _coverage(links: Links) -> Iterator[Hole]:
    """Requirements that nothing tests, or whose tests nothing tests."""
    for r in links.requirements:
        if r.withdrawn:
            continue
        cases, tests = links.cases_of.get(r.id), links.tests_of.get(r.id)
        if r.untested:
            if not cases and not tests and r.level == "MUST":
                yield Hole(place(r), f"{r.id} is untested by cases and has no test either")
            continue
        if not cases and r.level == "MUST":
            yield Hole(place(r), f"{r.id} has no case")
        if r.id not in links.defects_of and r.level != "MAY":
            yield Hole(place(r), f"{r.id} has no defect that violates it")


def _names(links: Links) -> Iterator[Hole]:
    """Features that there are not, and defects of the same name."""
    having = [
        *((place(r), r.features) for r in links.requirements if not r.withdrawn),
        *((f"case {case.id}", case.features) for case in links.cases),
        *((f"defect {defect.id}", defect.features) for defect in links.defects),
    ]
    for where, features in having:
        for feature in features:
            if feature not in FEATURES:
                yield Hole(where, f"names the feature {feature}, which is none{_nearest(feature, FEATURES)}")
    for kind, names in (("case", [c.id for c in links.cases]), ("defect", [d.id for d in links.defects])):
        for name, times in Counter(names).items():
            if times > 1:
                yield Hole(f"{kind} {name}", f"is the name of several {kind}s")


def _decisions(links: Links) -> Iterator[Hole]:
    """Records that no requirement rests on, or that decide nothing."""
    linked = {path for r in links.requirements for path in r.decisions}
    for decision in links.decisions:
        if decision.path not in linked:
            yield Hole(f"spec/{decision.path}", "no requirement links this record")
        if not decision.decision:
            yield Hole(f"spec/{decision.path}", "has no paragraph **Decision.**")


def _nearest(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""
