"""What is likely wrong with an answer to one call: the known mistakes that give the same numbers."""

from collections.abc import Mapping

from conformance.diagnosis.search import diagnose_one
from conformance.oracle.certify import Certified
from conformance.vectors.case import Array

MOST = 20_000
"""Numbers of a call up to which every known mistake is tried on it."""
SECONDS = 10.0
NAMED = 3
NONE = "no known mistake gives the same numbers"


def likely(found: Certified, policy: str, outputs: Mapping[str, Array]) -> list[str]:
    """Sentences on what may be the matter, or why none is named."""
    size = found.case.elements
    size += sum(golden.hi.size for golden in found.case.expected.values())
    if size > MOST:
        return [
            f"not looked for: the call has {size:,} numbers, and known mistakes are tried on {MOST:,} at most; "
            "a smaller call that fails will tell more"
        ]
    policy = found.case.policy(found.dtype, policy)
    models = diagnose_one(found.case, found.dtype, outputs, policy, SECONDS)
    if not models:
        return [NONE]
    lines = [
        f"{' '.join(defect.said for defect in model.defects)} "
        f"({', '.join(model.violates)}; {' + '.join(defect.id for defect in model.defects)})"
        for model in models[:NAMED]
    ]
    more = len(models) - len(lines)
    return lines + ([f"{more} more known mistakes give the same numbers here"] if more else [])
