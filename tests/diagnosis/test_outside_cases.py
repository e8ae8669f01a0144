"""Programs by others that every case once passed: each fails a case about its fault, and its right twin passes."""

import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from outside import faults, program, source, verdicts_read

from conformance.judging.verdict import FAILURES, Row
from conformance.names import DENSE
from conformance.running.messages import Question
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

OUTSIDE = Path(__file__).parents[1] / "corpus" / "outside"
PROGRAMS = tomllib.loads((OUTSIDE / "cases.toml").read_text("utf-8"))["program"]


@cache
def cases() -> dict[str, Case]:
    return {case.id: case for case in load_vectors().cases}


def text_of(program: str, right: str) -> str:
    """A program of the corpus: a right one, or one with the edits of its fault."""
    which, name = program.split("/")
    if name == right:
        return (OUTSIDE / which / "right" / f"{right}.py").read_text("utf-8")
    return source(which, name, faults(which)[name])


def row_of(name: str, text: str, case: Case, dtype: str) -> Row:
    assert case.operation in DENSE
    target = adopt(getattr(program(name, text), case.operation), name)
    with np.errstate(all="ignore"):
        return answered(Question(case, dtype), target.hello.accuracy, InProcess(target))


def test_every_program_that_passed_is_here() -> None:
    passed = [each["name"] for each in verdicts_read() if each["before"] == "no failure"]
    assert sorted(each["name"] for each in PROGRAMS) == sorted(passed)


@pytest.mark.parametrize("each", PROGRAMS, ids=lambda each: each["name"])
def test_a_program_fails_a_case_about_its_fault(each: dict[str, str]) -> None:
    case, name, right = cases()[each["case"]], each["name"], each["right"]
    assert each["wanted"] in case.covers
    row = row_of(name, text_of(name, right), case, each["dtype"])
    assert row.verdict in FAILURES
    assert each["wanted"] in row.covers
    assert row.message
    assert (
        row_of(right, text_of(f"{name.split('/')[0]}/{right}", right), case, each["dtype"]).verdict == "pass"
    )
