"""Wrong results that are the right ones times a number, or those of another place."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from wrong import rows_of

from conformance.defects.call import Call
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.search import diagnose
from conformance.telling.diagnosis import diagnosis_lines
from conformance.vectors.case import Array
from conformance.vectors.load import load_vectors

CASES = tuple(
    case
    for case in load_vectors().cases
    if case.operation.startswith("scaled_dot_product_attention") and case.elements < 2000 and not case.raises
)
Outputs = Mapping[str, Array]


def target(change: Callable[[Call, Outputs], Outputs]) -> Implementation:
    """The reference, whose results are changed."""

    def finish(c: Call, *given: Any) -> Outputs:
        return change(c, REFERENCE.finish(c, *given))

    def gradients(steps: Any, c: Call) -> Outputs:
        return change(c, REFERENCE.compute_gradients(steps, c))

    return Implementation(replace(REFERENCE, finish=finish, compute_gradients=gradients))


def said(change: Callable[[Call, Outputs], Outputs]) -> str:
    """What is said first behind the conditions."""
    found = diagnose(rows_of(target(change), CASES), CASES, "eager", [])
    lines = [line for line in diagnosis_lines(found) if "This explains" in line]
    return lines[0] if lines else ""


def times(name: str, factor: float, given: str = "") -> Callable[[Call, Outputs], Outputs]:
    """A result times a number, or where an option is not given."""

    def change(c: Call, found: Outputs) -> Outputs:
        apart = given and getattr(c, given) is not None
        return {n: (x * factor).astype(x.dtype) if n == name and not apart else x for n, x in found.items()}

    return change


def test_a_log_sum_exp_to_base_2_on_one_path_is_named() -> None:
    line = said(times("lse", 1 / np.log(2), given="attn_bias"))
    assert line.startswith("Your lse is the right one times log2(e): it is a logarithm to base 2.")


def test_gradients_have_factors_too() -> None:
    assert said(times("key", 2.0)).startswith("Your gradient of key is the right one twice.")


def test_a_factor_without_a_name_is_not_named() -> None:
    assert not said(times("lse", 1.2345))


def test_rows_of_another_batch_entry_are_named() -> None:
    def change(c: Call, found: Outputs) -> Outputs:
        return {n: x[::-1] if n == "output" and x.ndim == 4 else x for n, x in found.items()}

    assert said(change).startswith(
        "The wrong rows of your output are the right ones of another batch entry: "
    )


def test_rows_of_nothing_are_those_of_no_other_place() -> None:
    def change(c: Call, found: Outputs) -> Outputs:
        return {n: np.zeros_like(x) if n == "output" else x for n, x in found.items()}

    assert "another batch entry" not in said(change)
