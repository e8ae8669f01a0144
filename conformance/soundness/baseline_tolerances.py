"""What other rules would say of the same answers: one tolerance for every element of a dtype."""

from collections.abc import Callable, Mapping

import numpy as np

from conformance.judging.measure import held_rows
from conformance.vectors.case import Array, Case, Golden

Rule = Callable[[str, Golden, Array, Array], bool]
"""dtype, golden, answer and the naive answer, both in float64 and reduced to the held rows -> met."""

TORCH = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
}
"""Relative and absolute tolerance of torch.testing.assert_close."""


def _close(golden: Golden, got: Array, relative: float, absolute: float) -> bool:
    with np.errstate(all="ignore"):
        near = np.abs(got - golden.hi) <= absolute + relative * np.abs(golden.hi)
    return bool(np.all(near | (got == golden.hi)))


def _twice(dtype: str, golden: Golden, got: Array, naive: Array) -> bool:
    """The largest error is at most twice that of plain attention in the same dtype."""
    finite = np.isfinite(golden.hi) & np.isfinite(got) & np.isfinite(naive)
    error, other = (np.abs(x[finite] - golden.hi[finite]).max(initial=0.0) for x in (got, naive))
    return bool(error <= 2 * other)


RULES: Mapping[str, Rule] = {
    "numpy.testing": lambda dtype, golden, got, naive: _close(golden, got, 1e-7, 0.0),
    "torch.testing": lambda dtype, golden, got, naive: _close(golden, got, *TORCH[dtype]),
    "ONNX": lambda dtype, golden, got, naive: _close(golden, got, 1e-3, 1e-7),
    "FlashAttention": _twice,
}
"""The defaults of three libraries, and the rule of FlashAttention's tests."""


def refused(case: Case, dtype: str, outputs: Mapping[str, Array], naive: Mapping[str, Array]) -> set[str]:
    """The rules that an answer does not meet in one of its results."""
    found = set()
    for name, golden in case.expected.items():
        got, other = (
            held_rows(name, golden, np.asarray(x[name])).astype(np.float64) for x in (outputs, naive)
        )
        found |= {rule for rule, met in RULES.items() if not met(dtype, golden, got, other)}
    return found
