"""From a call to a case: expected values, W and s, found on the spot."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.dtypes import cast, same_numbers
from conformance.names import POLICIES, SERVING
from conformance.oracle.certified import Certified, UnjudgedError
from conformance.oracle.composed import compose
from conformance.oracle.least import DRAWS, least_limits, less_sure
from conformance.oracle.second import Second
from conformance.oracle.tiers import First
from conformance.oracle.unasked import in_doubt
from conformance.vectors.case import Array, held_in
from conformance.vectors.generate.build import UnjudgedDraftError, build
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.normal_form import pose

NOTE = "A call that is judged on the spot."
OF_KEYS = ("key", "value")
"""Gradients of which some rows can be judged."""


def certify(
    operation: str,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    dtype: str,
    *,
    rows: tuple[int, ...] | None = None,
    keys: tuple[int, ...] = (),
    policies: tuple[str, ...] = POLICIES,
    dtype_of: Mapping[str, str] | None = None,
    name: str = "call/certified",
    first: Callable[[str], First] = First,
    look: bool = False,
) -> Certified:
    """The call as a case, with expected values, W and s of every policy of the dtype that is asked for.

    Args:
        operation: one of the four operations.
        inputs: every array by the name of its argument, mask, lengths and grad_output among them; canonical layout.
            Floating-point arrays hold numbers that the dtype holds exactly; what dtype they have is no matter.
        options: what is no array, by name, as a case holds it (`is_causal`, `scale`, `window`, ...).
        dtype: the dtype of the call.
        rows: the query rows to judge; None for all. Where gradients are asked for, only rows of that of the query
            are judged then: the others are sums over every row.
        keys: rows of the gradients of key and value to judge, and nothing else; of gradients without projections.
        policies: the accuracy policies that bounds are wanted of; fewer are faster.
        dtype_of: the dtype of an operand that has another one, which attn_bias may.
        name: the case's ID, which seeds the drawn roundings of gradients.
        first: makes the first tier of a dtype.
        look: for a first look, with bounds that are quickly found and no larger than those of the specification:
            `Certified.passes` says whether an answer is right for certain, and nothing else is to be asked of it.

    Raises:
        TypeError, ValueError: the call is wrong (spec/errors.md).
        UnjudgedError: the call is right, and nothing is derived for it.
    """
    widened = {
        key: array if array.dtype.kind in "biuf" else np.asarray(array, dtype=np.float32)
        for key, array in inputs.items()
    }
    draft = Draft(
        name, NOTE, (), operation, widened, dict(options), rows=rows, only=(dtype,), dtype_of=dtype_of or {},
        sampled=dict.fromkeys(OF_KEYS, keys) if keys else {},
    )  # fmt: skip
    tier = first(dtype)
    values = replace(tier.values, limits=least_limits, draws=DRAWS) if look else tier.values
    inexact = [
        key
        for key, array in widened.items()
        if _changes(array, (dtype_of or {}).get(key) or held_in(key, dtype))
    ]
    if inexact:
        raise ValueError(
            f"{', '.join(inexact)} has numbers that {dtype} does not hold: round first, "
            "since what is expected is the result of the numbers that are given"
        )
    if operation in SERVING:
        return _composed(draft, dtype, policies, look)
    with np.errstate(all="ignore"):
        try:
            case = build(draft, values, policies)
        except UnjudgedDraftError as error:
            reason = str(error).removeprefix(name).lstrip(": ")
            overflow = error.excluded.get(
                dtype, ""
            )  # numbers that the dtype does not hold were refused above
            raise UnjudgedError(f"nothing is judged of this call: {reason}", overflow) from error
    problem = pose(operation, widened, options, rows)
    if not case.gradients and in_doubt(problem):
        raise UnjudgedError(
            "nothing is judged of this call: a visible value is not finite, and weighs next to nothing (ATT-11)"
        )
    whole = rows is None and "attn_bias" in widened
    bias_shape = widened["attn_bias"].shape if whole else (1, 1)
    second = Second(problem, bias_shape, tuple(case.expected), case.gradients, keys)
    held = {key: (golden.shape if keys else golden.hi.shape) for key, golden in case.expected.items()}
    errors = {key: tier.error(problem, key, shape) for key, shape in held.items()}
    if keys:
        case = replace(case, expected={name: case.expected[name] for name in OF_KEYS})
        errors = {name: errors[name][..., list(keys), :] for name in OF_KEYS}
    if look and case.gradients:
        case = replace(case, expected={key: less_sure(golden) for key, golden in case.expected.items()})
    found = Certified(case, dtype, errors, policies, second)
    if not look:
        found.admit()
    return found


def _composed(draft: Draft, dtype: str, policies: tuple[str, ...], look: bool) -> Certified:
    """An operation that is defined by reduction, by the calls that it stands for."""

    def part(of: Draft) -> Certified:
        return certify(
            of.operation, of.inputs, of.options, dtype, rows=of.rows, policies=policies, dtype_of=of.dtype_of,
            name=of.id, look=look,
        )  # fmt: skip

    found = compose(draft, policies, part)
    return Certified(found.case, dtype, found.own_error, policies, found, found.confirmed)


def _changes(array: Array, dtype: str) -> bool:
    """Whether some number is another one in a dtype."""
    return array.dtype.kind == "f" and not same_numbers(cast(array, dtype).astype(np.float64), array)
