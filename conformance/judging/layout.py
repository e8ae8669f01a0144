"""The other layout of attention, (..., length, heads, width): operands and outputs of it, and answers right in it."""

from collections.abc import Mapping

from conformance.judging.judge import judge
from conformance.vectors.case import Array, Case

LAID = ("query", "key", "value")
"""Operands that have both axes."""
HEADS, LENGTH = -3, -2
WANTED = "(batch, heads, length, width)"
OTHER = "(batch, length, heads, width)"


def exchanged(array: Array) -> Array:
    """An array with heads and length exchanged."""
    return array.swapaxes(HEADS, LENGTH)


def exchanged_operands(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The operands of a call with heads and length of query, key and value exchanged."""
    return {name: exchanged(x) if name in LAID else x for name, x in inputs.items()}


def right_exchanged(case: Case, dtype: str, policy: str, outputs: Mapping[str, Array]) -> bool:
    """Whether what was asked for is right once heads and length of the output are exchanged."""
    output = outputs.get("output")
    if output is None or output.ndim < 3:
        return False
    asked = {name: x for name, x in outputs.items() if name in case.expected}
    return judge(case, dtype, policy, {**asked, "output": exchanged(output)}).verdict == "pass"
