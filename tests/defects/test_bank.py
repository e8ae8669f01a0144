"""Every record is well formed, and what it says of the vectors is so."""

import io
import re
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path

import pytest

from conformance.defects import bank
from conformance.defects.bank import BANK, DEFECTS, KINDS
from conformance.defects.checks import CHECKS
from conformance.defects.defect import Defect
from conformance.defects.implementation import Implementation
from conformance.defects.kill import kill
from conformance.defects.record import read_record
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.model import Model
from conformance.judging.verdict import FAILURES
from conformance.names import DTYPES, FEATURES
from conformance.running.messages import Question
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.telling.requirements import read_requirements
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

REQUIREMENTS = {requirement.id: requirement for requirement in read_requirements()}
TESTED = sorted(
    name
    for name, requirement in REQUIREMENTS.items()
    if {"MUST", "SHOULD"} & set(requirement.notes)
    and not requirement.withdrawn
    and not any(note.startswith("untested") for note in requirement.notes)
)
PUBLIC = re.compile(r"[\w.-]+/[\w.-]+#\d+")
KNOWN = re.compile(
    r"torch|jax|JAX|flax|keras|onnx|FlashAttention|Transformer Engine|this specification before"
)
BY_ID = {defect.id: defect for defect in DEFECTS}

PRECISE = (
    "scale-in-float32",
    "weights-float32-in-float64",
    "matmul-in-tf32",
    "logits-in-float16",
    "product-overflows-float16",
    "average-summed-in-16-bits",
    "weights-truncated",
)
"""Defects that some dtypes or policies admit."""


@cache
def cases() -> tuple[Case, ...]:
    return load_vectors().cases


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_passes_every_case(dtype: str) -> None:
    asker = InProcess(adopt(Implementation(REFERENCE), "reference"))
    asked = [case for case in cases() if case.judged(dtype, "fused")]
    with redirect_stderr(io.StringIO()):
        rows = [answered(Question(case, dtype), "fused", asker) for case in asked]
    assert len(rows) > 200
    assert [(row.case, row.message) for row in rows if row.verdict != "pass"] == []


def test_ids_are_unique_kebab_case() -> None:
    assert len(BY_ID) == len(DEFECTS) >= 300
    assert [d.id for d in DEFECTS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", d.id)] == []


def test_no_kind_is_forgotten() -> None:
    files = {path.stem for path in Path(bank.__file__).parent.glob("*.py")}
    assert files - {"__init__", "mutators"} == set(KINDS)
    assert len(KINDS) == len(BANK)


@pytest.mark.parametrize(
    ("kind", "feature"), [("softcap", "softcap"), ("cache", "cache"), ("page_tables", "paged")]
)
def test_what_a_kind_needs_each_of_its_defects_needs(kind: str, feature: str) -> None:
    assert {defect.features[0] for defect in BANK[kind]} == {feature}
    assert any(len(defect.features) > 1 for defect in BANK[kind])


@pytest.mark.parametrize("kind", BANK)
def test_records_are_well_formed(kind: str) -> None:
    for defect in BANK[kind]:
        assert re.fullmatch(r"[A-Z0-9a-z].*[^.]\.", defect.sentence), defect.id
        assert 20 <= len(defect.sentence) <= 130, defect.id
        assert defect.violates, defect.id
        assert set(defect.violates) <= set(TESTED), defect.id
        assert len(set(defect.violates)) == len(defect.violates), defect.id
        assert set(defect.features) <= set(FEATURES), defect.id
        assert defect.origin == "slip" or PUBLIC.fullmatch(defect.origin) or KNOWN.match(defect.origin), (
            defect.id
        )
        excused = {**defect.admitted, **defect.unobservable}
        places = {*DTYPES, *(f"{d}/{p}" for d in DTYPES for p in ("eager", "fused"))}
        assert set(excused) <= places, defect.id
        assert all(excused.values()), defect.id
        assert defect.equivalent or defect.observable, defect.id


def test_sentences_are_unique() -> None:
    sentences = [defect.sentence for defect in DEFECTS]
    assert {s for s in sentences if sentences.count(s) > 1} == set()


def test_checks_name_requirements() -> None:
    assert {check.requirement for check in CHECKS} <= set(TESTED)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def _implementation_differs(defect: Defect) -> bool:
    return defect.implementation()._steps != REFERENCE


def test_every_defect_replaces_a_step() -> None:
    assert [defect.id for defect in DEFECTS if not _implementation_differs(defect)] == []


@pytest.mark.session("defects")
@pytest.mark.parametrize("requirement", TESTED)
def test_requirement_is_guarded(requirement: str) -> None:
    """Some defect that violates it is shown by a case that covers it."""
    covering = [case for case in cases() if requirement in case.covers]
    for defect in DEFECTS:
        if requirement in defect.violates and any(
            kill(defect, covering, defect.observable[:2], enough=1).cases.values()
        ):
            return
    pytest.fail(f"no case that covers {requirement} shows a defect that violates it")


@pytest.mark.session("defects")
@pytest.mark.parametrize("name", [defect.id for defect in DEFECTS if defect.equivalent])
def test_equivalent_defect_survives(name: str) -> None:
    assert not any(kill(BY_ID[name], cases(), ("float64", "bfloat16"), enough=1).cases.values())


@pytest.mark.session("defects")
@pytest.mark.parametrize("name", PRECISE)
def test_reasons_hold(name: str) -> None:
    assert kill(BY_ID[name], cases(), enough=1).problems == []


@pytest.mark.session("defects")
@pytest.mark.parametrize("kind", BANK)
def test_first_defects_of_a_kind_are_shown(kind: str) -> None:
    for defect in BANK[kind][:3]:
        assert kill(defect, cases(), defect.observable[:2], enough=1).problems == []


def test_refusals_alone_are_shown_by_errors() -> None:
    """A defect that breaks by accident would be shown by everything and prove nothing."""
    for defect in DEFECTS[::5]:
        dtype = (defect.observable or DTYPES)[0]
        asker = InProcess(adopt(defect.implementation(), defect.id))
        usable = [c for c in cases() if set(defect.features) <= set(c.features) and c.judged(dtype, "fused")]
        with redirect_stderr(io.StringIO()):
            rows = [answered(Question(case, dtype), "fused", asker) for case in usable[:12]]
        refuses = re.search(r"refused|must-|in-place|written", defect.id)
        assert refuses or not any(row.verdict == "error" for row in rows), defect.id
        assert all(row.message for row in rows if row.verdict in FAILURES), defect.id


def test_a_mistake_in_numbers_gives_numbers_where_it_is_shown() -> None:
    # one that raises by accident would be shown by any case, and explain any exception
    cases, record = {case.id: case for case in load_vectors().cases}, read_record()
    raising = set()
    for name, of in record.kills.items():
        shown = {case: dtype for dtype, some in of.items() for case in some if case in cases}
        small = [case for case in shown if cases[case].elements < 2000 and not cases[case].raises]
        model = Model((BY_ID[name],))
        if small and all(model.ask(cases[case], shown[case]).kind == "error" for case in small):
            raising.add(name)
    refusing = {name for name in raising if BY_ID[name].sentence.startswith("You refuse")}
    assert len(refusing) >= 5
    assert all(name.endswith("-mixed-by-reshape") for name in raising - refusing)  # whose shapes do not fit
