"""Which of several results are wrong."""

from dataclasses import replace
from typing import Any

from wrong import rows_of

from conformance.defects.bank import DEFECTS
from conformance.defects.call import Call
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.search import diagnose
from conformance.diagnosis.split import Split
from conformance.telling.diagnosis import diagnosis_json, diagnosis_lines
from conformance.vectors.case import Array
from conformance.vectors.load import load_vectors

CASES = tuple(
    case
    for case in load_vectors().cases
    if case.elements < 500
    and not case.raises
    and ("return_lse" in case.options or case.operation == "multi_head_attention_vjp")
)


def spoiled(*names: str) -> Implementation:
    """The reference with some results spoiled."""

    def finish(c: Call, *given: Any) -> dict[str, Array]:
        found = REFERENCE.finish(c, *given)
        return {n: x + x * x if n in names else x for n, x in found.items()}

    def gradients(steps: Any, c: Call) -> dict[str, Array]:
        found: dict[str, Array] = REFERENCE.compute_gradients(steps, c)
        return {n: x + x * x if n in names else x for n, x in found.items()}

    return Implementation(replace(REFERENCE, finish=finish, compute_gradients=gradients))


def said(target: Any) -> list[str]:
    found = diagnose(rows_of(target, CASES), CASES, "eager", [])
    sentences = [sentence for each in found.results for sentence in each.sentences]
    assert diagnosis_json(found)["results"] == sentences
    assert set(found.results[0].which if found.results else ()) <= set(diagnosis_lines(found))
    return sentences


def test_the_one_result_that_is_wrong_is_named() -> None:
    (line,) = said(spoiled("lse"))
    assert line.startswith("Only lse is wrong: output")


def test_of_gradients_as_well() -> None:
    (line,) = said(spoiled("w_o"))
    assert line.startswith("Only the gradient of w_o is wrong: the others are right in all ")


def test_nothing_is_said_where_every_result_or_the_output_alone_is_wrong() -> None:
    assert not said(spoiled("output"))
    assert not said(spoiled("output", "lse", "weights"))


def test_an_experiment_is_said_first_where_the_condition_is_an_operation() -> None:
    found = diagnose(rows_of(spoiled("w_o"), CASES), CASES, "eager", [])
    needed = "By experiment multi_head_attention_vjp is wrong only with d_v 2 or more (a/b, float64)."
    anything = (
        "By experiment multi_head_attention_vjp is wrong whatever is left out of the call (a/b, float64)."
    )
    split = Split("fail", "in gradients", 9, 1, 0, 9, frozenset())
    for splits, first in (((split,), needed), ((), needed)):
        assert diagnosis_lines(replace(found, splits=splits, experiments=(needed,)))[0] == first
    assert diagnosis_lines(replace(found, splits=(split,), experiments=(anything,)))[0].startswith(
        "It is wrong only in gradients, and there only in the gradient of w_o: 9 of 10 rows there"
    )
    sharp = replace(split, condition="in gradients and where `sinks` is given")
    assert diagnosis_lines(replace(found, splits=(sharp,), experiments=(needed,)))[0].startswith(
        "It is wrong only in"
    )


def test_what_explains_all_is_said_before_a_vague_condition() -> None:
    rows = rows_of(next(d for d in DEFECTS if d.id == "lse-in-base-two").implementation(), CASES)
    found = diagnose(rows, CASES, "eager")
    exact = next(line for line in diagnosis_lines(found) if "This explains " in line)
    split = Split("fail", "where `return_lse` is given", 9, 30, 0, 9, frozenset())
    sharp = replace(split, passing=1)
    assert diagnosis_lines(replace(found, splits=(split,), results=()))[0] == exact
    assert diagnosis_lines(replace(found, splits=(sharp,), results=()))[1] == exact
    assert diagnosis_lines(replace(found, splits=(sharp,)))[0].startswith(
        "It is wrong only where `return_lse` is given, and there only in lse: "
    )
