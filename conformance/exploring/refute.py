"""Mistakes that changed calls speak against: the target is right there and they are not, or wrong in another way."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from conformance.diagnosis.agree import Wrong, predicts_failure
from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.finding import Diagnosed, Finding
from conformance.diagnosis.model import Model
from conformance.diagnosis.plausible import refuted
from conformance.diagnosis.weigh import EXPLAINED, LARGE, telling

MOST = 24
"""Changed calls of each kind that are kept."""
FEW = 4
"""Cases up to which those that fail in a run may have been explained by chance."""


@dataclass
class Changed:
    """What a target made of changed calls."""

    right: list[Asked] = field(default_factory=list)
    wrong: list[Failure] = field(default_factory=list)

    def add(self, call: Asked) -> None:
        """Keeps a call that is small enough to ask models about."""
        kept: list[Asked] | list[Failure] = self.wrong if isinstance(call, Failure) else self.right
        if call.size <= LARGE and len(kept) < MOST:
            kept.append(call)  # type: ignore[arg-type]  # of its own kind


def unrefuted(found: Diagnosed, changed: Sequence[Changed], policy: str) -> Diagnosed:
    """A diagnosis without what changed calls refute: findings of few cases, and what would fit the only case."""
    right = [call for each in changed for call in each.right]
    wrong = [Wrong(call, policy) for each in changed for call in each.wrong]

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

    findings = tuple(f for f in map(checked, found.findings) if not refuted(f))
    return replace(found, findings=findings, single=tuple(filter(fits, found.single)))
