"""Programs by others that every case once passed: each fails a case about its fault, and its right twin passes."""

import importlib.util
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.judging.verdict import FAILURES, Row
from conformance.names import DENSE
from conformance.running.answer import Question
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

OUTSIDE = Path(__file__).parents[1] / "corpus" / "outside"
PROGRAMS = tomllib.loads((OUTSIDE / "cases.toml").read_text("utf-8"))["program"]
VERDICTS = tomllib.loads((OUTSIDE / "verdicts.toml").read_text("utf-8"))["program"]


@cache
def cases() -> dict[str, Case]:
    return {case.id: case for case in load_vectors().cases}


def function(path: Path, operation: str) -> Callable[..., Any]:
    """The operation of a program, loaded again."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    found: Callable[..., Any] = getattr(made, operation)
    return found


def row_of(path: Path, case: Case, dtype: str) -> Row:
    assert case.operation in DENSE
    target = adopt(function(path, case.operation), path.stem)
    with np.errstate(all="ignore"):
        return answered(Question(case, dtype), target.hello.accuracy, InProcess(target))


def test_every_program_that_passed_is_here() -> None:
    passed = [each["name"] for each in VERDICTS if each["before"] == "no failure"]
    assert sorted(each["name"] for each in PROGRAMS) == sorted(passed)


@pytest.mark.parametrize("each", PROGRAMS, ids=lambda each: each["name"])
def test_a_program_fails_a_case_about_its_fault(each: dict[str, str]) -> None:
    case, folder = cases()[each["case"]], OUTSIDE / Path(each["name"]).parent
    assert each["wanted"] in case.covers
    row = row_of(OUTSIDE / f"{each['name']}.py", case, each["dtype"])
    assert row.verdict in FAILURES
    assert each["wanted"] in row.covers
    assert row.message
    assert row_of(folder / "right" / f"{each['right']}.py", case, each["dtype"]).verdict == "pass"
