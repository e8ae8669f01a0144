"""Failing cases grouped by what seems to be their cause."""

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.diagnosis.saying import kind
from conformance.telling.page.failures import Failure
from conformance.telling.terminal import shorten

WORDS = 160
"""Characters of a cause."""
UNEXPLAINED = "Not explained by a known mistake"


@dataclass(frozen=True)
class Cause:
    """Failing cases of one run that seem to have one cause."""

    run: int
    words: str
    failures: tuple[Failure, ...]


def causes(failures: Sequence[Failure]) -> list[Cause]:
    """The causes by run, that of most cases first and the unexplained last."""
    groups: dict[tuple[int, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault((failure.run, _cause(failure)), []).append(failure)
    found = [Cause(run, words, tuple(those)) for (run, words), those in groups.items()]
    return sorted(found, key=lambda c: (c.run, c.words == UNEXPLAINED, -len(c.failures), c.words))


def _cause(failure: Failure) -> str:
    """The mistake that explains most, else what the call raised, else that there is none."""
    suspects = [suspect for row in failure.rows for suspect in row.suspects if suspect.sentence]
    if suspects:
        return max(suspects, key=lambda suspect: suspect.explains).sentence
    raised = next((row for row in failure.rows if row.message and not row.error), None)
    return shorten(f"{raised.verdict}: {kind(raised.message)}", WORDS) if raised else UNEXPLAINED
