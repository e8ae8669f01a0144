"""`conformance.assert_conforms` and `conformance.expected`: any call judged by the bounds of the specification."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from conformance.judging.measure import allowed
from conformance.judging.verdict import Judgement
from conformance.names import POLICIES, SDPA
from conformance.oracle.certified import Certified, UnjudgedError
from conformance.oracle.certify import certify
from conformance.oracle.given import Given, given
from conformance.oracle.likely import NONE, SECONDS, likely
from conformance.oracle.reading import dtype_asked, read_result
from conformance.oracle.waiting import told
from conformance.running.arrays import UnreadableError
from conformance.running.return_values import NoSuchGradientError, named
from conformance.running.suggestions import nearest
from conformance.vectors.case import Array

Rows = int | list[int] | tuple[int, ...] | None
RIGHT = "its numbers are right"
"""The end of what the judge says where nothing but the dtype is wrong."""
SHOWN = 12
"""Rows that are named one by one."""
LONG = 2**28
"""Products of two numbers, from which on a first look is taken."""


@dataclass(frozen=True)
class Expected:
    """What a call is to give, in float64, and how far each number may be from it, by the name of the result.

    Of a result with query rows the arrays hold the judged rows; all others are whole.
    """

    value: Mapping[str, Array]
    tolerance: Mapping[str, Array]
    rows: tuple[int, ...]  # the query rows that are judged


@dataclass(frozen=True)
class CallJudgement(Judgement):
    """The judgement of an answer that conforms."""

    rows: tuple[int, ...] = ()  # the query rows that were judged
    results: tuple[str, ...] = ()  # the outputs or gradients that were judged


def expected(
    query: Any = None,
    key: Any = None,
    value: Any = None,
    *,
    dtype: Any = None,
    policy: str = "eager",
    rows: Rows = None,
    operation: str = SDPA,
    grad_output: Any = None,
    grad_lse: Any = None,
    **options: Any,
) -> Expected:
    """What a call is to give, and the tolerance of the specification for each number.

    Args:
        query: array of any library, (..., H, q_len, d_k), or (..., q_len, d_q) of a layer. Of the operations of
            spec/serving.md these three are the first arrays of the operation, which may go by their own names too.
        key: (..., G, kv_len, d_k), or (..., kv_len, d_kv).
        value: (..., G, kv_len, d_v), or (..., kv_len, d_vv).
        dtype: that of the result, by name or as an object; None for the dtype of query. It has to hold every
            number that is given.
        policy: what an implementation may round (spec/numerics.md).
        rows: None for every query row that can be afforded, a number of rows, or a list of them.
        operation: one of the operations.
        grad_output: the cotangent, for an operation that ends in `_vjp`.
        grad_lse: the cotangent of the lse, (..., H, q_len), where there is one.
        **options: those of the operation, by name; of a layer the weights too.

    Raises:
        TypeError: a dtype is wrong, an argument no array, or an option unknown.
        ValueError: anything else is wrong (spec/errors.md), or nothing is derived for the call, as where it may
            overflow its dtype.
    """
    _check_policy(policy)
    asked = None if dtype is None else dtype_asked(dtype)
    call = given(operation, query, key, value, grad_output, {**options, "grad_lse": grad_lse}, rows)
    found = _certified(call, asked or call.dtype, policy)
    if not found.case.judged(found.dtype, found.case.policy(found.dtype, policy)):
        raise UnjudgedError(found.unjudged(policy))
    bounds = {
        name: golden.bounds[found.dtype][found.case.policy(found.dtype, policy)]
        for name, golden in found.case.expected.items()
    }
    return Expected(
        value={name: golden.hi for name, golden in found.case.expected.items()},
        tolerance={
            name: np.where(np.isfinite(found.case.expected[name].hi), allowed(bound), 0.0)
            for name, bound in bounds.items()
        },
        rows=call.judged_rows,
    )


def assert_conforms(
    got: Any,
    query: Any = None,
    key: Any = None,
    value: Any = None,
    *,
    policy: str = "eager",
    rows: Rows = None,
    operation: str = SDPA,
    grad_output: Any = None,
    grad_lse: Any = None,
    **options: Any,
) -> CallJudgement:
    """Asserts that a result is as close to the exact one as the specification asks.

    Args:
        got: what was returned for the call: an array, a named tuple, a mapping, or one of the tuples that a target
            may return. Arrays are of any library, on any device.
        query: as in `expected`, as all that follows.
        key: see there.
        value: see there.
        policy: what the implementation may round.
        rows: the query rows to judge.
        operation: what was called.
        grad_output: the cotangent.
        grad_lse: the cotangent of the lse.
        **options: of the call, by name.

    Returns:
        The judgement: how much of what is allowed the worst element uses, and which rows were judged.

    Raises:
        AssertionError: the result is wrong; the text names the worst element and what is likely the matter.
        TypeError: a dtype is wrong, an argument no array, or an option unknown.
        ValueError: anything else is wrong in the call, or nothing is derived for it.
    """
    __tracebackhide__ = True
    _check_policy(policy)
    call = given(operation, query, key, value, grad_output, {**options, "grad_lse": grad_lse}, rows)
    try:
        outputs = _outputs(got, call)
    except (UnreadableError, NoSuchGradientError) as error:
        raise AssertionError(f"{error}\n  call      {call.said}") from None
    judgement = None
    if call.work >= LONG:  # a first look takes a quarter of the time
        found = _certified(call, call.dtype, policy, look=True)
        judgement = found.passes(outputs, policy)
    if judgement is None:
        with told(
            f"the exact result of {len(call.judged_rows)} query rows is being found; rows=64 takes less"
        ):
            found = _certified(call, call.dtype, policy)
            judgement = found.judge(outputs, policy)
    if judgement.verdict == "fail":
        with told(f"it fails; known mistakes are tried for up to {SECONDS:g} s"):
            message = _message(found, judgement, call, policy, outputs)
        raise AssertionError(message)
    kept = {field.name: getattr(judgement, field.name) for field in fields(Judgement)}
    return CallJudgement(**kept, rows=call.judged_rows, results=tuple(found.case.expected))


def _check_policy(policy: str) -> None:
    if policy not in POLICIES:
        raise ValueError(
            f"policy={policy!r} is not one of {', '.join(POLICIES)}{nearest(str(policy), POLICIES)}"
        )


def _certified(call: Given, dtype: str, policy: str, look: bool = False) -> Certified:
    # the bounds of fused tell the grade
    asked = (policy, "fused") if policy == "eager" else (policy, "eager")
    try:
        return certify(
            call.operation,
            call.inputs,
            call.options,
            dtype,
            rows=call.rows,
            policies=asked,
            dtype_of=call.dtype_of,
            name=f"call/{call.operation}",
            look=look,
        )
    except UnjudgedError as error:
        if not error.overflow:
            raise
        wider = "" if dtype == "float64" else " or a wider dtype"
        raise UnjudgedError(
            f"{error.overflow}, so nothing can be derived: give smaller numbers{wider}", error.overflow
        ) from error


def _outputs(got: Any, call: Given) -> dict[str, Array]:
    returned = named(got, call.operation, call.options, call.inputs)
    return {name: read_result(name, x) for name, x in returned.items()}


def _message(
    found: Certified, judgement: Judgement, call: Given, policy: str, outputs: Mapping[str, Array]
) -> str:
    lines = [
        judgement.message,
        f"  call      {call.said}",
        f"  policy    {policy}, {_rows_said(call, found)}",
    ]
    if judgement.worst is not None:
        worst = judgement.worst
        lines += [
            f"  got       {worst.got!r} at {found.case.label(worst.output)}[{', '.join(map(str, worst.index))}]",
            f"  expected  {worst.expected!r}",
            f"  allowed   +- {worst.allowed:.3g}",
        ]
    if judgement.message.endswith(RIGHT):
        return "\n".join(lines)
    hints = likely(found, policy, outputs)
    if judgement.worst is None and hints[-1] == NONE:
        hints = []  # what is wrong in shape or dtype was never a matter of numbers
    lines += [f"  likely    {line}" for line in hints]
    return "\n".join(lines)


def _rows_said(call: Given, found: Certified) -> str:
    what = "rows of the gradient of query" if found.case.gradients and call.rows else "query rows"
    if call.rows is None:
        return f"every one of {call.q_len} {what} judged"
    shown = ", ".join(map(str, call.rows[:SHOWN])) + (", ..." if len(call.rows) > SHOWN else "")
    return f"{len(call.rows)} of {call.q_len} {what} judged: {shown}"
