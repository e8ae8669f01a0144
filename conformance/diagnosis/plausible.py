"""Whether a mistake that reproduces some rows is named: what it has to explain, and what refutes it."""

from collections.abc import Iterator, Sequence

from conformance.diagnosis.failing import Evidence, Failure
from conformance.diagnosis.finding import Finding
from conformance.diagnosis.saying import kind

FEWEST = 0.05
"""The share of the failures of its kind, raised or not, below which a finding is a guess."""
TRIED = 2
"""Passing rows below which they refute nothing."""
REFUTED = 0.5
"""The share of the passing rows that it would fail above which these refute a model."""
SHARED = 0.8
"""The share of the calls whose exceptions say the same that a model has to raise in."""
NEW = 0.2
"""The share of what a finding explains that no finding before it does."""


def plausible(finding: Finding, seen: Evidence) -> bool:
    """Whether it is more than a guess, and passing rows do not refute it."""
    return _enough_of_its_kind(finding, seen) and not refuted(finding) and _raises_as_it_does(finding, seen)


def adding(found: Sequence[Finding]) -> Iterator[Finding]:
    """Those that explain rows which no finding before them does: a relative in another size says nothing new."""
    explained = set[Failure]()
    for finding in found:
        new = [f for f in finding.explained if f not in explained]
        if len(new) >= max(1, NEW * finding.explains):
            explained.update(finding.explained)
            yield finding


def _enough_of_its_kind(finding: Finding, seen: Evidence) -> bool:
    kinds = {f.raised for f in finding.explained}
    return finding.explains >= FEWEST * sum(f.raised in kinds for f in seen.failures)


def refuted(finding: Finding) -> bool:
    """Whether it would fail most of the passing rows that it was tried on."""
    return finding.looked_at >= TRIED and finding.contradicted > REFUTED * finding.looked_at


def _raises_as_it_does(finding: Finding, seen: Evidence) -> bool:
    """Whether it raises where the same is said; where most calls raise, in half of them."""
    if not all(f.raised for f in finding.explained):
        return True
    kinds = {kind(f.said) for f in finding.explained}
    alike = sum(kind(f.said) in kinds for f in seen.failures)
    raised = len(seen.failures)
    many = 2 * raised >= raised + len(seen.passes)
    return finding.explains >= SHARED * alike and (not many or 2 * finding.explains >= raised)
