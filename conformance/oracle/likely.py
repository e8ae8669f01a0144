"""What is likely wrong with an answer to one call: where it is wrong, and which mistakes give the same numbers."""

import math
from collections.abc import Mapping, Sequence

from conformance.diagnosis.model import Model
from conformance.diagnosis.search import diagnose_one
from conformance.judging.judge import judge
from conformance.oracle.certify import Certified, UnjudgedError, certify
from conformance.oracle.reduced import Part, parts, size, where_wrong
from conformance.vectors.case import Array

MOST = 20_000
"""Numbers of a call up to which every known mistake is tried on it."""
PAIRS = 150_000
"""Pairs of a query and a key, over the heads, up to which they are."""
SECONDS = 10.0
NAMED = 3
NONE = "no known mistake gives the same numbers"


def likely(found: Certified, policy: str, outputs: Mapping[str, Array]) -> list[str]:
    """Sentences on what may be the matter, or why none is named; of a large call a part of it is looked at."""
    wanted = {name: golden.shape for name, golden in found.case.expected.items()}
    shaped = all(name in outputs and outputs[name].shape == shape for name, shape in wanted.items())
    where = where_wrong(found, policy, outputs) if shaped else []
    policy = found.case.policy(found.dtype, policy)
    whole = Part(found.case.inputs, found.case.options, outputs, "")
    if affordable(whole):
        return [*where, *_lines(diagnose_one(found.case, found.dtype, outputs, policy, SECONDS))]
    for part in parts(found, policy, outputs) if shaped else ():
        if affordable(part) and (models := _of_part(found, part, policy)):
            return [*where, *_lines(models, f"in {part.said}: " if part.said else "")]
    numbers = f"{size(whole):,}"
    return [
        *where,
        f"no known mistake gives the same numbers in a part of it; the whole call has {numbers} numbers, "
        "which is too many to try: a smaller call that fails will tell more",
    ]


def affordable(part: Part) -> bool:
    """Whether some thousand models can be asked about it in seconds."""
    if "query" not in part.inputs or "key" not in part.inputs:  # gathered operands: few rows, as a rule
        return size(part) <= 5 * MOST
    heads, q_len = part.inputs["query"].shape[-3:-1] if part.inputs["query"].ndim > 2 else (1, 1)
    pairs = math.prod(part.inputs["query"].shape[:-3]) * heads * q_len * part.inputs["key"].shape[-2]
    return size(part) <= 5 * MOST and pairs <= PAIRS


def _of_part(found: Certified, part: Part, policy: str) -> tuple[Model, ...]:
    """The known mistakes that give a part of the answer."""
    case = found.case
    try:
        small = certify(
            case.operation, part.inputs, part.options, found.dtype,
            policies=(policy,), dtype_of=case.dtype_of, name=f"{case.id}/part",
        )  # fmt: skip
    except (UnjudgedError, ValueError):
        return ()
    if judge(small.case, small.dtype, policy, part.outputs).verdict == "pass":
        return ()
    return diagnose_one(small.case, small.dtype, part.outputs, policy, SECONDS)


def _lines(models: Sequence[Model], lead: str = "") -> list[str]:
    if not models:
        return [NONE]
    lines = [
        f"{lead}{' '.join(defect.said for defect in model.defects)} "
        f"({', '.join(model.violates)}; {' + '.join(defect.id for defect in model.defects)})"
        for model in models[:NAMED]
    ]
    more = len(models) - len(lines)
    return lines + ([f"{more} more known mistakes give the same numbers here"] if more else [])
