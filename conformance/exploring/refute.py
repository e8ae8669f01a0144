"""Mistakes that changed calls speak against: the target is right there and they are not, or wrong in another way."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.diagnosis.agree import Wrong, predicts_failure
from conformance.diagnosis.failing import A
from conformance.diagnosis.finding import Diagnosed, Finding
from conformance.diagnosis.model import Model
from conformance.diagnosis.plausible import refuted
from conformance.diagnosis.shared import forget
from conformance.diagnosis.weigh import EXPLAINED, LARGE, telling
from conformance.exploring.changed import Changed

MOST = 24
"""Changed calls of each kind that are looked at."""
FEW = 4
"""Cases up to which those that fail in a run may have been explained by chance."""


def unrefuted(found: Diagnosed, changed: Sequence[Changed], policy: str) -> Diagnosed:
    """A diagnosis without what changed calls refute: findings of few cases, and what would fit the only case."""
    right = [call for each in changed for call in _small(each.passing)]
    wrong = [Wrong(call, policy) for each in changed for call in _small(each.failing) if call.outputs]

    def against(model: Model) -> tuple[int, int]:
        told = telling(model, right)
        return sum(predicts_failure(model, call, policy) for call in told), len(told)

    def checked(finding: Finding) -> Finding:
        if len({f.case.id for f in finding.explained}) > FEW:
            return finding
        fails, of = against(finding.model)
        return replace(
            finding,
            contradicted=finding.contradicted + fails,
            looked_at=finding.looked_at + of,
            alike=tuple(model for model in finding.alike if not against(model)[0]),
        )

    def fits(model: Model) -> bool:
        return not against(model)[0] and all(call.word(model) in EXPLAINED for call in wrong)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of the models, which are wrong on purpose
        try:
            findings = tuple(f for f in map(checked, found.findings) if not refuted(f))
            return replace(found, findings=findings, single=tuple(filter(fits, found.single)))
        finally:
            forget()


def _small(calls: Sequence[A]) -> list[A]:
    """Those that are small enough to ask models about."""
    return [call for call in calls if call.size <= LARGE][:MOST]
