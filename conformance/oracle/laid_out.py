"""Whether an answer is right but for its layout: heads and length exchanged, in what was returned or given."""

from collections.abc import Mapping

import numpy as np

from conformance.judging.judge import judge
from conformance.names import MHA, MHA_VJP, SDPA, SERVING
from conformance.oracle.certify import Certified, UnjudgedError, certify
from conformance.oracle.given import given
from conformance.vectors.case import Array

WANTED = "(batch, heads, length, width)"
GOT = "(batch, length, heads, width)"
HEADS, LENGTH = -3, -2
ROWS = 2
"""Query rows that are judged with heads and length exchanged."""
LAID = ("query", "key", "value")
MOST = 2**23
"""Products of two numbers up to which the call is judged in the other layout."""


def laid_out(found: Certified, policy: str, outputs: Mapping[str, Array]) -> str:
    """What to say of an answer in another layout than that of the specification; empty if it is in none."""
    case, output = found.case, outputs.get("output")
    if case.operation in (MHA, MHA_VJP, *SERVING) or output is None or "output" not in case.expected:
        return ""
    wanted = case.expected["output"].shape
    if output.ndim < 3 or len(wanted) != output.ndim:
        return ""
    swapped = np.swapaxes(output, HEADS, LENGTH)
    if swapped.shape == wanted and _passes(found, policy, {**outputs, "output": swapped}):
        return (
            f"heads and length are exchanged: {GOT} was returned, {WANTED} is wanted; its numbers are right"
        )
    if output.shape != wanted:
        if swapped.shape != wanted:
            return ""
        return f"heads and length are exchanged: {GOT} was returned, {WANTED} is wanted"
    if _right_in_the_other(found, policy, outputs):
        return (
            f"heads and length are exchanged: in {GOT} the answer is right, {WANTED} is wanted: "
            "give query, key, value and the result with the two axes exchanged, as x.swapaxes(-3, -2)"
        )
    return ""


def _passes(found: Certified, policy: str, outputs: Mapping[str, Array]) -> bool:
    return judge(found.case, found.dtype, found.case.policy(found.dtype, policy), outputs).verdict == "pass"


def _right_in_the_other(found: Certified, policy: str, outputs: Mapping[str, Array]) -> bool:
    """Whether the answer is right if operands and output have the length in front of the heads."""
    case = found.case
    if case.operation != SDPA or set(outputs) != {"output"} or any(case.inputs[x].ndim < 3 for x in LAID):
        return False
    inputs = {name: np.swapaxes(x, HEADS, LENGTH) if name in LAID else x for name, x in case.inputs.items()}
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
        swapped = np.swapaxes(outputs["output"], HEADS, LENGTH)
        return other.judge({"output": swapped}, policy).verdict == "pass"
    except (UnjudgedError, TypeError, ValueError):
        return False
