"""What is said without a model: by the size of errors, by a second answer, by memory nobody wrote, by a library."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from wrong import rows_of

from conformance.defects.bank import DEFECTS
from conformance.defects.call import Call
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Diagnosed, Note
from conformance.diagnosis.library import libraries
from conformance.diagnosis.memory import by_memory
from conformance.diagnosis.search import diagnose
from conformance.diagnosis.split import Split
from conformance.judging.verdict import Row
from conformance.running.again import MOST, OTHER
from conformance.telling.diagnosis import diagnosis_lines
from conformance.telling.grades import outlier_lines
from conformance.vectors.case import Array, Case
from conformance.vectors.load import load_vectors

BY_ID = {defect.id: defect for defect in DEFECTS}


@cache
def cases() -> tuple[Case, ...]:
    """Small forward cases of attention."""
    return tuple(
        case
        for case in load_vectors().cases
        if case.operation == "scaled_dot_product_attention"
        and case.chapter in ("attention", "mask", "causal", "numerics", "heads")
        and sum(x.size for x in case.inputs.values()) < 2000
    )


def ending(change: Callable[[Array], Any]) -> Implementation:
    """The reference with another output at the very end."""

    def finish(c: Call, output: Array, *more: Any) -> dict[str, Array]:
        found = REFERENCE.finish(c, output, *more)
        return {**found, "output": np.asarray(change(found["output"])).astype(found["output"].dtype)}

    return Implementation(replace(REFERENCE, finish=finish))


def diagnosed(target: Any, dtypes: tuple[str, ...] = ("float32",), policy: str = "eager") -> Any:
    target.accuracy = policy
    return diagnose(rows_of(target, cases(), dtypes), cases(), policy, [BY_ID["mask-inverted"]])


def test_float64_in_name_only_is_told_by_its_size_and_hides_nothing() -> None:
    target = Implementation(replace(REFERENCE, **BY_ID["everything-float32-in-float64"].change))
    both = Implementation(
        replace(REFERENCE, **BY_ID["everything-float32-in-float64"].change, **BY_ID["mask-inverted"].change)
    )
    found = diagnosed(target, ("float64", "float32"))
    assert [note.kind for note in found.notes] == ["size-of-float32"]
    assert "Your float64 results are as accurate as float32" in " ".join(diagnosis_lines(found))
    found = diagnosed(both, ("float64", "float32"))
    assert [finding.model.name for finding in found.findings] == ["mask-inverted"]
    assert [note.kind for note in found.notes] == ["size-of-float32"]


def cut(x: Array) -> Array:
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda x: x.astype(ml_dtypes.bfloat16), "stored-in-bfloat16", "rounded to it"),
        (lambda x: x.astype(np.float16), "stored-in-float16", "rounded to it"),
        (cut, "stored-in-bfloat16", "cut off, not rounded"),
    ],
)
def test_results_that_are_stored_in_fewer_bits_are_told(
    change: Callable[[Array], Any], kind: str, words: str
) -> None:
    found = diagnosed(ending(change))
    assert [note.kind for note in found.notes] == [kind]
    assert words in diagnosis_lines(found)[0]


def test_a_reduced_policy_that_is_met_is_named() -> None:
    def rounded(c: Call, weights: Array) -> Any:
        return weights.astype(ml_dtypes.bfloat16).astype(c.wide)

    target = Implementation(
        replace(REFERENCE, normalise=lambda c, e, t, v: rounded(c, REFERENCE.normalise(c, e, t, v)))
    )
    found = diagnosed(target)
    assert [note.kind for note in found.notes] == ["size-of-bf16x1"]
    assert "meet the tolerance of `bf16x1`" in diagnosis_lines(found)[0]


def test_a_mistake_is_not_taken_for_a_lack_of_accuracy() -> None:
    assert diagnosed(BY_ID["mask-inverted"].implementation()).notes == ()


def test_another_answer_when_asked_again_is_said_first() -> None:
    rng = np.random.default_rng(7)
    target = ending(lambda x: x * (1 + 1e-3 * rng.standard_normal(x.shape)))
    rows = rows_of(target, cases())
    assert sum(row.message.endswith(OTHER) for row in rows) == MOST
    found = diagnose(rows, cases(), "eager", [BY_ID["mask-inverted"]])
    assert found.notes[0].kind == "unsteady"
    assert diagnosis_lines(found)[0].startswith("You give another answer when you are asked again")


def test_a_wrong_answer_that_stays_is_not_called_another() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    assert any(row.failed for row in rows)
    assert not any(row.message.endswith(OTHER) for row in rows)


def test_results_that_are_not_written_are_told() -> None:
    def leave(x: Array) -> Array:
        x = x.copy()
        x[..., -1:, :].view(np.uint8)[...] = 0xFF
        return x

    found = diagnosed(ending(leave))
    assert found.notes[0].kind == "unwritten"
    assert "a part of them is never written" in diagnosis_lines(found)[0]


def test_few_results_that_look_unwritten_among_many_that_are_wrong_are_not_told() -> None:
    seen = 0

    def leave(x: Array) -> Array:
        nonlocal seen
        seen += 1
        x = x + x.dtype.type(1)
        if seen < 4:
            x[..., -1:, :].view(np.uint8)[...] = 0xFF
        return x

    assert not any(note.kind == "unwritten" for note in diagnosed(ending(leave)).notes)


def test_memory_that_few_results_hold_does_not_stand_before_a_condition() -> None:
    row = next(row for row in rows_of(BY_ID["mask-inverted"].implementation(), cases()) if row.failed)
    case = next(each for each in cases() if each.id == row.case)
    note = Note("unwritten", "Your results hold memory", ("IND-4",), (Failure(case, row.dtype),), first=True)
    split = Split("fail", "where `mask` is given", 9, 0, 0, 9, frozenset())
    few, all_ = (Diagnosed((), n, n, splits=(split,), notes=(note,)) for n in (9, 1))
    assert diagnosis_lines(few)[0].startswith("It is wrong only where `mask` is given")
    assert diagnosis_lines(all_)[0].startswith("Your results hold memory")


@pytest.mark.parametrize(("dtype", "told"), [("float16", False), ("float32", True)])
def test_a_number_of_16_bits_may_look_unwritten_by_chance(dtype: str, told: bool) -> None:
    case = max((c for c in cases() if dtype in c.dtypes and not c.raises), key=lambda c: c.elements)
    made = np.ones(4096, dtype)
    made[7:9].view(np.uint8)[...] = 0x41
    failures = [Failure(case, dtype, outputs={"output": x}) for x in (made, made.copy())]
    assert [note.kind for note in by_memory(failures)] == ["unwritten"] * told
    made[:64].view(np.uint8)[...] = 0x41
    failures = [Failure(case, dtype, outputs={"output": made})] * 2
    assert [note.kind for note in by_memory(failures)] == ["unwritten"]


def test_a_result_of_another_dtype_is_told() -> None:
    def finish(c: Call, *given: Any) -> dict[str, Array]:
        found = REFERENCE.finish(c, *given)
        return {**found, "output": found["output"].astype(np.float64)}

    found = diagnosed(Implementation(replace(REFERENCE, finish=finish)))
    assert [note.kind for note in found.notes] == ["dtype"]
    assert diagnosis_lines(found)[0].startswith(
        "Your output comes back in float64 where the call has float32. This explains "
    )


def of_library(package: str) -> list[Row]:
    """Rows that fail where the baseline of a library says so, and pass elsewhere."""
    known = next(
        each for each in libraries() if each.package == package and "scaled_dot" in each.called
    ).known
    return [
        Row(
            case.id, case.operation, "float32", "fail" if (case.id, "float32") in known else "pass",
            case.covers, case.features, message="NaN",
        )
        for case in load_vectors().cases
        if case.operation == "scaled_dot_product_attention" and not case.raises
    ]  # fmt: skip


def test_a_library_is_known_by_its_baseline_where_it_is_there() -> None:
    rows = of_library("torch")
    assert sum(row.failed for row in rows) > 3
    every = load_vectors().cases
    found = diagnose(rows, every, "eager", [BY_ID["mask-inverted"]], packages=["torch"])
    assert found.notes[0].kind == "library"
    assert "torch.nn.functional.scaled_dot_product_attention does by itself" in " ".join(
        diagnosis_lines(found)
    )
    assert diagnose(rows, every, "eager", [BY_ID["mask-inverted"]], packages=["numpy"]).notes == ()


def test_errors_hide_no_wrong_number() -> None:
    """One wrong row beside many that raise: the mistake that fits is named."""
    rows = rows_of(BY_ID["mask-inverted"].implementation(), cases())
    failing = [row for row in rows if row.failed]
    said = [
        replace(row, verdict="error", message="TypeError: no array (k.py:3)", got=()) for row in failing[1:8]
    ]
    right = [row for row in rows if not row.failed]
    found = diagnose([failing[0], *said, *right], cases(), "eager", [BY_ID["mask-inverted"]])
    lines = diagnosis_lines(found)
    assert any(line.startswith("one failure fits: ") and "mask-inverted" in line for line in lines)
    assert any("7 of 8 failures say it themselves: TypeError: no array" in line for line in lines)


def graded(when: Callable[[Case], bool]) -> list[Row]:
    return [
        Row(
            case.id, case.operation, "bfloat16", "pass", case.covers, case.features,
            grade="eager" if when(case) else "fused",
        )
        for case in load_vectors().cases
        if not case.raises and not case.gradients and "bfloat16" in case.dtypes
    ]  # fmt: skip


def test_outliers_of_the_grade_are_told_with_what_they_have_in_common() -> None:
    (line,) = outlier_lines(graded(lambda case: "sinks" in case.features), load_vectors().cases)
    assert "meet `fused`; the other" in line
    assert "meet `eager` only, all where `sinks` is given" in line
    assert outlier_lines(graded(lambda case: False), load_vectors().cases) == []
    assert outlier_lines(graded(lambda case: True), load_vectors().cases) == []


def test_results_that_are_all_too_small_are_not_taken_for_rounded_ones() -> None:
    found = diagnosed(Implementation(replace(REFERENCE, **BY_ID["softmax-large-epsilon"].change)))
    assert found.notes[0].kind == "size-of-shrunk"
    assert "nearer to zero than the right ones" in "\n".join(diagnosis_lines(found))


def test_the_tolerance_that_admits_nearly_all_is_named_and_not_a_narrower_one_that_admits_most() -> None:
    target = Implementation(replace(REFERENCE, **BY_ID["logits-in-bfloat16"].change))
    assert [note.kind for note in diagnosed(target).notes] == ["size-of-bf16x1"]
