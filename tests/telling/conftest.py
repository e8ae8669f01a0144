"""Reports made of rows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.events import Started
from conformance.running.messages import Hello
from conformance.running.request import Request
from conformance.telling.recorder import Recorder
from conformance.telling.report import Report
from conformance.vectors.load import Vectors

HELLO = Hello("x", "1", ("float32",), ("mask",), (SDPA,), "eager")


def report_row(verdict: Any = "pass", case: str = "a/b", dtype: str = "float32", **fields: Any) -> Row:
    return Row(case, SDPA, dtype, verdict, fields.pop("covers", ("ATT-1",)), (), **fields)


def report_of(*rows: Row, request: Request | None = None, hello: Hello = HELLO, **changes: Any) -> Report:
    request = request or Request(target="x.py", fresh=7)
    recorder = Recorder(Vectors((), "0" * 64, "1.0", "1"), [], ["run"], request)
    recorder.add(Started(hello, request.source, "eager", len(rows)))
    for row in rows:
        recorder.add(request.baseline.seen(row) if request.baseline else row)
    return replace(recorder.report(), **changes)


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    return report_row


@pytest.fixture(scope="session")
def make_report() -> Callable[..., Report]:
    return report_of
