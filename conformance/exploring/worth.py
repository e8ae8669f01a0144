"""Whether a diagnosis leaves open what experiments may tell."""

from conformance.diagnosis.finding import Diagnosed

KNOWN = 0.8
"""The share of what fails and can be compared that models reproduce without contradiction, from which on no experiment
is made."""
FEW = 6
"""Cases of a run below which an experiment is made though a model explains them, if no condition is known."""


def worth_asking(found: Diagnosed) -> bool:
    """Whether models and notes leave it open why most of what fails, and can be compared, does."""
    return len(known_rows(found)) < KNOWN * found.compared


def known_rows(found: Diagnosed) -> set[tuple[str, str]]:
    """Rows that a model reproduces which nothing speaks against, or that a note tells of: case and dtype.

    Of few cases without a condition a model reproduces none for certain: they may fit by chance.
    """
    few = found.cases < FEW and not found.splits
    findings = () if few else found.findings
    exact = {f for each in findings if not each.contradicted and not each.partly for f in each.explained}
    exact |= {f for note in found.notes for f in note.explained}
    return {(f.case.id, f.dtype) for f in exact}
