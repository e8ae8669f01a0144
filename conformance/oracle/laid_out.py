"""Whether an answer is right but for its layout: heads and length exchanged, in what was returned or given."""

from collections.abc import Mapping

from conformance.judging.layout import LAID, OTHER, WANTED, exchanged, exchanged_operands, right_exchanged
from conformance.names import SDPA
from conformance.oracle.certified import Certified, UnjudgedError
from conformance.oracle.certify import certify
from conformance.oracle.given import given
from conformance.vectors.case import Array

ROWS = 2
"""Query rows that are judged with heads and length exchanged."""
MOST = 2**23
"""Products of two numbers up to which the call is judged in the other layout."""


def laid_out(found: Certified, policy: str, outputs: Mapping[str, Array]) -> str:
    """What to say of an answer in another layout than that of the specification; empty if it is in none."""
    case, output = found.case, outputs.get("output")
    if case.operation != SDPA or output is None or output.ndim < 3:
        return ""
    wanted = case.expected["output"].shape
    if right_exchanged(case, found.dtype, policy, outputs):
        return (
            f"heads and length are exchanged: {OTHER} was returned, {WANTED} is wanted; its numbers are right"
        )
    if output.shape != wanted:
        if exchanged(output).shape != wanted:
            return ""
        return f"heads and length are exchanged: {OTHER} was returned, {WANTED} is wanted"
    if _right_in_the_other(found, policy, outputs):
        return (
            f"heads and length are exchanged: in {OTHER} the answer is right, {WANTED} is wanted: "
            "give query, key, value and the result with the two axes exchanged, as x.swapaxes(-3, -2)"
        )
    return ""


def _right_in_the_other(found: Certified, policy: str, outputs: Mapping[str, Array]) -> bool:
    """Whether the answer is right if operands and output have the length in front of the heads."""
    case = found.case
    if set(outputs) != {"output"} or any(case.inputs[x].ndim < 3 for x in LAID):
        return False
    inputs = exchanged_operands(case.inputs)
    others = {name: x for name, x in inputs.items() if name not in LAID}
    try:
        options = {**case.options, **others}
        call = given(SDPA, inputs["query"], inputs["key"], inputs["value"], None, options, ROWS)
        if call.work > MOST:
            return False
        other = certify(
            SDPA, call.inputs, call.options, found.dtype, rows=call.rows, policies=(policy,),
            dtype_of=case.dtype_of, name=f"{case.id}/other",
        )  # fmt: skip
        return other.judge({"output": exchanged(outputs["output"])}, policy).verdict == "pass"
    except (UnjudgedError, TypeError, ValueError):
        return False
