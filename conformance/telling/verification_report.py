"""What a verification of the vectors proved, for people and as JSON."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from conformance.telling.terminal import counted
from conformance.vectors.verify.run import Verified

COUNTS = ("cases", "certified", "compared", "related")


def table(chapters: Mapping[str, Verified]) -> Table:
    """A row for each chapter: elements by the way in which they were proved."""
    shown = Table("chapter", "cases", "by the oracle", "by the second reference", "by relations", "differ")
    for chapter, found in chapters.items():
        shown.add_row(chapter, *(f"{getattr(found, name):,}" for name in COUNTS), str(len(found.differences)))
    return shown


def total(chapters: Mapping[str, Verified]) -> str:
    """One line over all chapters."""
    whole = Verified()
    for found in chapters.values():
        whole.add(found)
    return (
        f"{counted(whole.cases, 'case')}: {whole.certified:,} elements certified by the oracle, "
        f"{whole.compared:,} agree with the second reference, {whole.related:,} with related calls; "
        f"{counted(len(whole.differences), 'difference')}"
    )


def verified_json(chapters: Mapping[str, Verified]) -> dict[str, Any]:
    """Counts and differences by chapter."""
    return {
        chapter: {**{name: getattr(found, name) for name in COUNTS}, "differences": found.differences}
        for chapter, found in chapters.items()
    }
