"""Log-sum-exps to the base 2: what a target with `lse_base = 2` is given and returns, in natural logarithms."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conformance.running.messages import Answer, Question
from conformance.vectors.case import Array

NATURAL, BINARY = BASES = ("e", "2")
"""What a log-sum-exp is the logarithm to."""
LN2 = math.log(2.0)
GIVEN = {"grad_lse": LN2, "lses": 1 / LN2}
"""Operand -> what its numbers are times, in base 2: a cotangent grows as the logarithm shrinks."""
RETURNED = {"lse": LN2}
"""Result -> what its numbers in base 2 are times, to be those of the natural logarithm."""


def asked(question: Question, base: str) -> Question:
    """The question with its operands in a base."""
    case = question.case
    found = [name for name in GIVEN if name in case.inputs]
    if base == NATURAL or not found:
        return question
    inputs = {**case.inputs, **{name: times(case.inputs[name], GIVEN[name]) for name in found}}
    # in the dtype of the lse, never in fewer bits: another rounding is none of the target's
    dtype_of = {name: dtype for name, dtype in case.dtype_of.items() if name not in found}
    return replace(question, case=replace(case, inputs=inputs, dtype_of=dtype_of, seeded={}))


def answered(answer: Answer, base: str) -> Answer:
    """The answer with its results in natural logarithms; what is of 16 bits becomes float32, which holds them."""
    if base == NATURAL or answer.kind != "outputs":
        return answer
    return replace(answer, outputs=natural(answer.outputs))


def natural(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Results in base 2 as natural logarithms: rounded once, as a kernel does that converts at its end."""
    return {
        name: _widened(times(x, RETURNED[name]), x) if name in RETURNED and _floating(x) else x
        for name, x in outputs.items()
    }


def times(x: Array, factor: float) -> Array:
    """The numbers times a factor, in float64."""
    found: Array = x.astype(np.float64) * factor
    return found


def _widened(x: Array, like: Array) -> Array:
    return x if like.dtype.itemsize == 8 else x.astype(np.float32)


def _floating(x: Array) -> bool:
    return x.dtype.kind == "f" or x.dtype.name == "bfloat16"
