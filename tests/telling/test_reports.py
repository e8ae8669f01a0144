"""Public reports of wrong attention, each as a program that is run: it fails, and the right requirement is blamed."""

import importlib.util
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.defects.bank import DEFECTS
from conformance.defects.record import THEN, read_record
from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.telling.requirement_ranking import blame
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

TESTS = Path(__file__).parents[1]
REPORTS = tomllib.loads((TESTS / "corpus" / "reports.toml").read_text("utf-8"))["report"]
BANK = {defect.id: defect for defect in DEFECTS}
MOST = 450
"""Numbers in the operands of the cases that are asked beside those that are known to show it, in float32."""
LEAST_FIRST = 40
"""Of all reports, how many have the right requirement first."""


@cache
def cases() -> dict[str, Case]:
    return {case.id: case for case in load_vectors().cases}


@cache
def record() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    return read_record().kills


@cache
def programs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reported_programs", TESTS / "exploring" / "programs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def target_of(report: dict[str, Any]) -> Any:
    place, _, name = report["program"].rpartition(":")
    return getattr(programs(), name) if place else BANK[name].implementation()


def rows_of(report: dict[str, Any], asked: Sequence[Case], dtype: str, fresh: int | None = None) -> list[Row]:
    request = Request(target_of(report), selection=Selection(dtypes=(dtype,)), accuracy="fused", fresh=fresh)
    with np.errstate(all="ignore"):
        return [row for row in run(request, asked) if isinstance(row, Row)]


def showing(report: dict[str, Any]) -> dict[str, list[str]]:
    """The cases that are known to show a mistake, by dtype."""
    if "cases" in report or report["program"] not in BANK:
        return {"float32": report.get("cases", [])}
    defect = BANK[report["program"]]
    kills = record()[defect.id]
    return {dtype: [id_ for kill in kills[dtype] for id_ in kill.split(THEN)] for dtype in defect.observable}


@cache
def small() -> frozenset[str]:
    """Cases of all kinds, and few of each: every one whose operands are small."""
    return frozenset(
        case.id
        for case in cases().values()
        if sum(x.size for x in case.inputs.values()) < MOST and case.chapter not in ("digits", "validation")
    )


def dtypes_of(report: dict[str, Any]) -> list[str]:
    """float32, and by turns another dtype at which it shows."""
    shown = list(showing(report))
    by_turns = shown[REPORTS.index(report) % len(shown)]
    return list(dict.fromkeys(["float32" if "float32" in shown else shown[0], by_turns]))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["address"])
def test_a_report_fails_and_the_right_requirement_is_blamed(report: dict[str, Any]) -> None:
    shown = showing(report)
    beside = frozenset() if "cases" in report else small()
    fresh = 1 if "IND-4" in report["wanted"] else None  # what no single call shows
    for dtype in dtypes_of(report):
        asked = [case for case in cases().values() if case.id in beside | set(shown[dtype])]
        rows = rows_of(report, asked, dtype, fresh)
        failed = {row.case for row in rows if row.failed}
        assert set(report.get("cases", [])) <= failed
        blamed = [found.requirement for found in blame(rows)]
        assert blamed, report["mistake"]
        if not report.get("everywhere"):
            assert set(blamed[: report.get("place", 1)]) & set(report["wanted"]), (dtype, blamed)


def test_a_report_is_seen_at_every_dtype_at_which_it_shows() -> None:
    for report in REPORTS:
        for dtype, ids in showing(report).items():
            if ids:
                rows = rows_of(report, [cases()[id_] for id_ in dict.fromkeys(ids)], dtype)
                assert any(row.failed for row in rows), (report["address"], dtype)
    assert {dtype for report in REPORTS for dtype in showing(report)} == set(DTYPES)


def test_the_right_requirement_comes_first_for_most() -> None:
    assert len(REPORTS) == len({report["address"] for report in REPORTS})
    first = [report for report in REPORTS if "place" not in report and "everywhere" not in report]
    assert len(first) >= LEAST_FIRST
