"""Which known mistakes a wrong answer in a narrow dtype is closest to, by all its numbers together."""

import time

import numpy as np

from conformance.diagnosis.model import Model
from conformance.diagnosis.search import models
from conformance.diagnosis.shared import forget
from conformance.vectors.case import Array, Case

NARROW = ("float16", "bfloat16")
SHARE = 0.02
"""The part of the error, in root mean square, up to which a mistake explains it. Roundings of a kernel in bfloat16
left at most 0.015 of it in what was measured, and the mistake that came next more than twice that of the first."""
ALIKE = 1.5
"""Mistakes that leave up to so many times the least are not told apart."""
ASKED = 16
"""Models between two looks at the clock, which is slow."""


def closest(case: Case, dtype: str, got: Array, until: float) -> tuple[Model, ...]:
    """The mistakes that leave least of what an answer is off by; none where even the least is more than roundings.

    The tolerance of a test is that of the right answer. A wrong one may round more, as where its logits are not
    scaled, so that all its numbers together tell what each of them cannot.

    Args:
        case: the call, whose output is judged in full.
        dtype: of the call; any but a narrow one finds nothing.
        got: the output, of the shape that is wanted.
        until: processor time after which no more mistakes are tried, as of `time.process_time`.
    """
    golden = case.expected.get("output")
    if dtype not in NARROW or golden is None or golden.rows is not None or golden.hi.shape != got.shape:
        return ()
    answer, off = got.astype(np.float64), _rms(got.astype(np.float64) - golden.hi)
    if not np.isfinite(off) or not off:
        return ()
    left: dict[Model, float] = {}
    try:
        for number, model in enumerate(m for m in models() if m.may_show(case)):
            if number % ASKED == 0 and time.process_time() > until:
                break
            output = model.ask(case, dtype).outputs.get("output")
            if output is not None and output.shape == answer.shape:
                left[model] = _rms(answer - output.astype(np.float64)) / off
    finally:
        forget()
    least = min(left.values(), default=np.inf)
    near = [model for model, share in left.items() if share <= min(SHARE, ALIKE * least)]
    return tuple(sorted(near, key=lambda model: (not model.usual, left[model])))


def _rms(errors: Array) -> float:
    """The root mean square; infinite where an error is not finite."""
    with np.errstate(all="ignore"):
        mean = float(np.square(errors).mean()) if errors.size else 0.0
    return mean**0.5 if np.isfinite(mean) else np.inf
