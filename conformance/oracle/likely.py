"""What is likely wrong with an answer to one call: where it is wrong, and which mistakes give the same numbers."""

import math
import time
from collections.abc import Mapping, Sequence

from conformance.diagnosis.model import Model
from conformance.diagnosis.search import diagnose_one
from conformance.judging.judge import judge
from conformance.oracle.certified import Certified, UnjudgedError
from conformance.oracle.certify import certify
from conformance.oracle.closest import closest
from conformance.oracle.laid_out import laid_out
from conformance.oracle.reduced import Part, parts, size, where_wrong
from conformance.vectors.case import Array, Case

MOST = 100_000
"""Numbers of a call up to which every known mistake is tried on it; twice as many where its pairs are few."""
PAIRS, FEW_PAIRS = 150_000, 35_000
"""Pairs of a query and a key, over the heads, up to which they are, and up to which they are few."""
SECONDS = 5.0
"""Processor time for the search, after which what is left is not tried."""
NAMED = 3
NONE = "no known mistake gives the same numbers"


def likely(found: Certified, policy: str, outputs: Mapping[str, Array]) -> list[str]:
    """Sentences on what may be the matter, or why none is named; of a large call a part of it is looked at."""
    if hint := laid_out(found, policy, outputs):
        return [hint]
    until = time.process_time() + SECONDS
    wanted = {name: golden.shape for name, golden in found.case.expected.items()}
    shaped = all(name in outputs and outputs[name].shape == shape for name, shape in wanted.items())
    where = where_wrong(found, policy, outputs) if shaped else []
    policy = found.case.policy(found.dtype, policy)
    whole = Part(found.case.inputs, found.case.options, outputs, "")
    if affordable(whole):
        return [*where, *(_lines(found.case, found.dtype, whole, policy, until) or [_none(until)])]
    for part in parts(found, policy, outputs) if shaped else ():
        case = _of_part(found, part, policy) if affordable(part) and time.process_time() < until else None
        if case is not None and (lines := _lines(case, found.dtype, part, policy, until)):
            return [*where, *lines]
    if not shaped:
        return [*where, NONE]
    numbers = f"{size(whole):,}"
    return [
        *where,
        f"{_none(until)} in a part of it; the whole call has {numbers} numbers, "
        "which is too many to try: a smaller call that fails will tell more",
    ]


def affordable(part: Part) -> bool:
    """Whether some thousand models can be asked about it in seconds."""
    if "query" not in part.inputs or "key" not in part.inputs:  # gathered operands: few rows, as a rule
        return size(part) <= MOST
    heads, q_len = part.inputs["query"].shape[-3:-1] if part.inputs["query"].ndim > 2 else (1, 1)
    pairs = math.prod(part.inputs["query"].shape[:-3]) * heads * q_len * part.inputs["key"].shape[-2]
    return pairs <= PAIRS and size(part) <= (2 * MOST if pairs <= FEW_PAIRS else MOST)


def _of_part(found: Certified, part: Part, policy: str) -> Case | None:
    """A part of the call as a case of its own; None where it is not judged, or right."""
    case = found.case
    try:
        small = certify(
            case.operation, part.inputs, part.options, found.dtype,
            policies=(policy,), dtype_of=case.dtype_of, name=f"{case.id}/part",
        )  # fmt: skip
    except (UnjudgedError, ValueError):
        return None
    wrong = judge(small.case, small.dtype, policy, part.outputs).verdict == "fail"
    return small.case if wrong else None


def _lines(case: Case, dtype: str, part: Part, policy: str, until: float) -> list[str]:
    """The known mistakes that give the answer to a call, or come closest to it; empty if none does."""
    lead = [part.said] if part.said else []
    seconds = until - time.process_time()
    if not (models := diagnose_one(case, dtype, part.outputs, policy, seconds)) and "output" in part.outputs:
        models = closest(case, dtype, part.outputs["output"], until)
        lead.append(f"up to roundings of {dtype}")
    return _named(models, f"in {', '.join(lead)}: " if part.said else f"{lead[0]}: " if lead else "")


def _none(until: float) -> str:
    """That none was found; in time, where there was more to try."""
    return NONE if time.process_time() < until else f"{NONE}, of those that {SECONDS:g} s suffice to try,"


def _named(models: Sequence[Model], lead: str) -> list[str]:
    """The first of them, and how many more there are."""
    lines = [
        f"{lead}{' '.join(defect.said for defect in model.defects)} "
        f"({', '.join(model.violates)}; {' + '.join(defect.id for defect in model.defects)})"
        for model in models[:NAMED]
    ]
    more = len(models) - len(lines)
    return lines + ([f"{more} more known mistakes give the same numbers here"] if more else [])
