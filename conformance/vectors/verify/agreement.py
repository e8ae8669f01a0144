"""Whether the second reference agrees with the golden values of a case."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from mpmath import mp, mpf

from conformance.names import MHA, MHA_VJP, SDPA, SDPA_VJP, SERVING
from conformance.vectors.case import Case, Golden
from conformance.vectors.verify import second_gradients, second_reference, second_serving

# hi + lo leaves out at most half a unit of lo's last place: 2^-106 of the value, or half of the least subnormal
RELATIVE, LEAST = mpf(2) ** -105, mpf(2) ** -1074

REFERENCES: Mapping[str, Callable[[Case], Iterator[second_reference.Compared]]] = {
    SDPA: second_reference.references,
    MHA: second_reference.references,
    SDPA_VJP: second_gradients.gradients,
    MHA_VJP: second_gradients.gradients,
    **dict.fromkeys(SERVING, second_serving.served),
}
"""By operation."""


def compared(case: Case) -> tuple[int, list[str]]:
    """How many elements were compared, and what differs or was not reached; none of an operation without reference.

    Of a layer too wide for scalar loops some columns of each row are compared, of all else every element.
    """
    if case.operation not in REFERENCES:
        return 0, []
    seen = {output: np.zeros(golden.hi.shape, bool) for output, golden in case.expected.items()}
    wrong = []
    for output, place, value, slack in REFERENCES[case.operation](case):
        seen[output][place] = True
        if problem := difference(case.expected[output], place, value, slack):
            wrong.append(f"{case.id}: {output}{list(place)}: {problem}")
    unreached = [
        f"{case.id}: {output} has an element that the second reference does not reach"
        for output, places in seen.items()
        if not (places.any(axis=-1).all() if _sampled(case, output) else places.all())
    ]
    return sum(int(places.sum()) for places in seen.values()), wrong + unreached


def _sampled(case: Case, output: str) -> bool:
    """Whether columns of the output projection are sampled."""
    if output != "output" or "w_o" not in case.inputs:
        return False
    heads, width, _ = case.inputs["w_o"].shape
    return int(case.expected["output"].hi.size * heads * width) >= 2 * second_reference.TERMS


def difference(golden: Golden, place: tuple[int, ...], value: Any, slack: Any) -> str:
    """How the golden differs from the value at a place; empty if it does not."""
    hi, lo = float(golden.hi[place]), float(golden.lo[place])
    if value is None:
        return f"the golden asks for {hi} where the spec asks for nothing"
    if isinstance(value, float):
        same = math.isnan(hi) if math.isnan(value) else hi == value
        return "" if same and lo == 0 else f"the golden is {hi} + {lo}, the second reference says {value}"
    if not math.isfinite(hi):
        return f"the golden is {hi}, the second reference says {mp.nstr(value, 20)}"
    with mp.workdps(second_reference.DIGITS):
        error = abs((value - mpf(hi)) - mpf(lo))
        allowed = abs(value) * RELATIVE + LEAST + slack
        return "" if error <= allowed else f"the golden {hi} + {lo} is off by {mp.nstr(error, 3)}"
