"""How closely an output is asked for, in lines: one a dtype, or what each is made of."""

import numpy as np

from conformance.judging.measure import allowed
from conformance.names import REDUCED_POLICIES
from conformance.vectors.case import Bound, Golden

LEGEND = "within: the most that an element may be off (spec/numerics.md); -v says what it is made of"
LEGEND_IN_FULL = "W: what an error may be in the worst case; s: its RMS as predicted (spec/numerics.md)"


def tolerance_lines(golden: Golden) -> list[str]:
    """A line for each dtype, without the policies of reduced precision."""
    return [
        f"  {dtype}: {_within({p: bound for p, bound in policies.items() if p not in REDUCED_POLICIES})}"
        for dtype, policies in golden.bounds.items()
    ]


def tolerance_lines_in_full(golden: Golden) -> list[str]:
    """A line for each dtype and policy, and for each signature."""
    lines = [
        f"  {dtype} {policy}: {_bound_line(bound)}"
        for dtype, policies in golden.bounds.items()
        for policy, bound in policies.items()
    ]
    lines += [
        f"  {dtype} {policy}: at most {limit:.3g} along the derivative by the {name}"
        for name, signature in golden.signatures.items()
        for dtype, policies in signature.limits.items()
        for policy, limit in policies.items()
    ]
    return lines + ([] if golden.rms_applies else ["  the RMS rule does not apply"])


def _within(bounds: dict[str, Bound]) -> str:
    """`within 6.2e-06`, or with the policy next to each number where they differ."""
    most = {policy: _most(bound) for policy, bound in bounds.items()}
    if len({*most.values()}) == 1:
        return next(iter(most.values()))
    return ", ".join(f"{words} ({policy})" for policy, words in most.items())


def _most(bound: Bound) -> str:
    if not bound.worst.size:
        return "no element"
    most = float(np.max(allowed(bound)))
    return f"within {most:.3g}" if most else "exact"


def _bound_line(bound: Bound) -> str:
    if not bound.worst.size:
        return "no element"
    worst, rms = float(np.max(bound.worst)), float(np.max(bound.rms))
    return "exact" if worst == 0 else f"within min(W, 6 s), W at most {worst:.3g}, s at most {rms:.3g}"
