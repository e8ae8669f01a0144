"""Reports: the contract's fields, the schema, the status rules, and files that are never half written."""

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conformance.errors import UsageError
from conformance.judging.verdict import FAILURES, VERDICTS, Diagnosis, Got, Row, Worst
from conformance.names import DTYPES, FEATURES, MHA, MHA_VJP, POLICIES, PROFILES, SDPA, SDPA_VJP
from conformance.resources import schema
from conformance.running.events import Started
from conformance.running.messages import Hello
from conformance.running.request import Request
from conformance.running.select import Selection
from conformance.telling import summary
from conformance.telling.atomic_file import OutFile
from conformance.telling.recorder import Recorder
from conformance.telling.report import Report, read_report
from conformance.vectors.load import Vectors

HELLO = Hello(
    "x",
    "1",
    ("float32",),
    ("mask", "attn_bias", "broadcast", "empty"),
    (SDPA,),
    "eager",
    environment={"torch": "2"},
)
WORST = Worst("output", (0, 1), float("nan"), float("-inf"), 0.5)


def row(verdict: Any = "pass", features: tuple[str, ...] = (), **fields: Any) -> Row:
    made = {"case": "a/b", "operation": SDPA, "dtype": "float32", "covers": ("ATT-1",), **fields}
    return Row(verdict=verdict, features=features, **made)


@pytest.fixture
def recorder(make_vectors: Callable[..., Vectors], make_case: Callable[..., Any]) -> Callable[..., Recorder]:
    def make(*rows: Row, narrowed: str | None = None, total: int | None = None, **more: Any) -> Recorder:
        request = Request(target="x.py", selection=Selection(expression=narrowed))
        made = Recorder(
            make_vectors(make_case()), ["ATT-1", "ATT-10", "ATT-2"], ["run", "x"], request, **more
        )
        made.add(Started(HELLO, "x.py", "eager", len(rows) if total is None else total))
        for each in rows:
            made.add(each)
        return made

    return make


@pytest.mark.covers("CONF-8", "CONF-11")
def test_fields_are_the_contract_s(recorder: Any) -> None:
    data = recorder(row(worst=WORST, error_over_bound=float("inf"))).report().to_json()
    assert list(data) == [
        "report_version", "suite_version", "spec_version", "vectors_sha256", "target", "environment", "command",
        "status", "summary", "features", "profiles", "untested_requirements", "results", "options", "asked",
    ]  # fmt: skip
    assert list(data["target"]) == ["name", "version", "source", "accuracy"]
    assert list(data["results"][0]) == [
        "case", "operation", "dtype", "verdict", "covers", "features", "error_over_bound", "rms_over_sigma", "grade",
        "message", "worst", "diagnosis", "seconds",
    ]  # fmt: skip
    assert data["results"][0]["worst"] == {
        "output": "output", "index": [0, 1], "got": "NaN", "expected": "-Infinity", "allowed": 0.5,
    }  # fmt: skip
    assert data["environment"].keys() >= {"python", "platform", "numpy", "torch"}
    assert data["untested_requirements"] == ["ATT-2", "ATT-10"]
    assert set(data["features"]) == set(FEATURES)
    assert set(data["profiles"]) == set(PROFILES)
    Draft202012Validator(schema("report")).validate(data)


def test_the_schema_names_what_the_suite_names() -> None:
    fields = schema("report")["$defs"]["row"]["properties"]
    Draft202012Validator.check_schema(schema("report"))
    assert fields["verdict"]["enum"] == list(VERDICTS)
    assert fields["dtype"]["enum"] == list(DTYPES)
    assert schema("report")["properties"]["target"]["properties"]["accuracy"]["enum"] == list(POLICIES)


numbers = st.none() | st.floats(allow_nan=False)


@settings(max_examples=40)
@given(
    verdict=st.sampled_from(VERDICTS),
    message=st.text(),
    error_over_bound=numbers,
    rms_over_sigma=numbers,
    grade=st.sampled_from(["fused", "eager", None]),
    worst=st.none() | st.builds(
        Worst, st.just("output"), st.tuples(st.integers(0, 9)), *[st.floats(allow_nan=False)] * 3
    ),
    got=st.just(()) | st.tuples(st.builds(Got, st.text(), st.just("float32"), st.just((1,)), st.just("AAAAAA=="))),
    got_left_out=st.text(),
    diagnosis=st.just(()) | st.tuples(st.builds(Diagnosis, st.text(), *[st.integers(0, 9)] * 2)),
)  # fmt: skip
def test_rows_there_and_back(verdict: Any, **fields: Any) -> None:
    made = row(verdict, **fields)
    Draft202012Validator(schema("report")).validate(report_of(made).to_json())
    from_json = Report.from_json(json.loads(json.dumps(report_of(made).to_json(), allow_nan=False)))
    assert from_json.results == (made,)


def report_of(*rows: Row) -> Report:
    recorder = Recorder(Vectors((), "0" * 64, "1.0", "1"), [], [], Request(target="x.py"))
    recorder.add(Started(HELLO, "x.py", "eager", len(rows)))
    for each in rows:
        recorder.add(each)
    return recorder.report()


UNSUPPORTED_CLAIM = row("unsupported", ("mask",))
NOT_CLAIMED = row("unsupported", ("softcap",))
OTHER_OPERATION = row("unsupported", operation=MHA)


@pytest.mark.parametrize(
    ("rows", "whole", "status"),
    [
        ([row()], True, "conformant"),
        ([row(), NOT_CLAIMED, OTHER_OPERATION], True, "conformant"),
        ([row()], False, "incomplete"),
        ([row(), UNSUPPORTED_CLAIM], True, "incomplete"),
        ([], True, "incomplete"),
        ([NOT_CLAIMED], True, "incomplete"),
        *[
            ([row(), row(verdict)], whole, "non-conformant")
            for verdict in FAILURES
            for whole in (True, False)
        ],
        ([row("fail"), UNSUPPORTED_CLAIM], True, "non-conformant"),
    ],
)
@pytest.mark.covers("CONF-2", "CONF-3", "CONF-4")
def test_status(rows: list[Row], whole: bool, status: str) -> None:
    assert summary.status(rows, HELLO, whole) == status


@pytest.mark.covers("CONF-3")
def test_narrowed_or_cut_short_is_incomplete(recorder: Any) -> None:
    assert recorder(row()).report().status == "conformant"
    assert recorder(row(), narrowed="x").report().status == "incomplete"
    assert recorder(row(), total=2).report().status == "incomplete"
    assert recorder(row("fail"), narrowed="x").report().status == "non-conformant"


def test_incomplete_says_why(recorder: Any) -> None:
    assert recorder(row(), narrowed="x").finished().left_open == "-k x left out a part of the suite"
    assert recorder(row(), total=3).finished().left_open == "only 1 of 3 tests were run"
    answered = row("unsupported", ("mask",), message="no mask today")
    assert recorder(row(), answered).finished().left_open == (
        "1 test of a supported feature was answered `unsupported`, first a/b float32 (no mask today)"
    )
    assert recorder(NOT_CLAIMED).finished().left_open == "no test of a supported feature was run"


def test_a_run_ends_in_one_frozen_result(recorder: Any) -> None:
    made = recorder(row("fail"), total=2)
    finished = made.finished()
    assert finished == made.finished()
    assert (finished.report, finished.left_open) == (
        made.report(),
        "",
    )  # since it is not incomplete, it failed
    assert (
        "not tested: float64, float16, bfloat16, which the target does not declare in `dtypes`"
        in finished.notes
    )
    assert (finished.diagnosis, finished.causes, finished.written) == ((), (), ())
    with pytest.raises(FrozenInstanceError):
        finished.report = None


def test_rows_stand_in_one_order_whenever_they_came(recorder: Any) -> None:
    rows = [row(case=case, dtype=dtype) for case in ("a/a", "a/b") for dtype in DTYPES]
    assert recorder(*rows[::-1]).report().results == tuple(rows)


@pytest.mark.covers("CONF-2", "CONF-3")
def test_features() -> None:
    rows = [
        row(),
        row("pass", ("mask",)),
        row("crash", ("mask", "empty")),
        row("pass", ("attn_bias",)),
        NOT_CLAIMED,
    ]
    features = summary.features(rows, HELLO, whole=True)
    assert (features["mask"].status, features["mask"].passed, features["mask"].failed) == (
        "non-conformant",
        1,
        1,
    )
    assert features["attn_bias"].status == "conformant"
    assert features["broadcast"].status == "incomplete", "claimed, and nothing has shown it"
    assert features["softcap"].status == "not claimed"


ENCODER = [row("pass", (feature,)) for feature in ("mask", "attn_bias", "broadcast", "empty")]


@pytest.mark.parametrize(
    ("rows", "claimed", "status"),
    [
        ([row(), *ENCODER], HELLO.features, "conformant"),
        ([row(), *ENCODER], ("mask",), "incomplete"),
        ([row(), *ENCODER, row("fail", ("softcap",))], HELLO.features, "conformant"),
        ([row(), *ENCODER, row("fail")], HELLO.features, "non-conformant"),
        ([row(), *ENCODER, UNSUPPORTED_CLAIM], HELLO.features, "incomplete"),
    ],
)
@pytest.mark.covers("CONF-2", "CONF-4")
def test_profiles(rows: list[Row], claimed: tuple[str, ...], status: str) -> None:
    hello = Hello("x", None, ("float32",), claimed, (SDPA,), "eager")
    assert summary.profiles(rows, hello, whole=True)["encoder"] == status


def test_training_needs_the_gradient_of_each_claimed_operation() -> None:
    def training(*operations: str) -> str:
        hello = Hello("x", None, ("float32",), (), operations, "eager")
        return summary.profiles([row(operation=o) for o in operations], hello, whole=True)["training"]

    assert training(SDPA) == training(SDPA, MHA, SDPA_VJP) == "incomplete"
    assert training(SDPA, SDPA_VJP) == training(SDPA, MHA, SDPA_VJP, MHA_VJP) == "conformant"


# Files


def test_the_file_is_kept_up_to_date(tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.telling.recorder.WRITE_SECONDS", 0.0)
    path = tmp_path / "report.json"
    made = recorder(row(), total=3, file=OutFile(path, "report"))
    assert len(read_report(path).results) == 1
    made.add(row("fail", case="a/c"))
    written = read_report(path)
    assert (len(written.results), written.status) == (2, "non-conformant")
    assert os_listing(tmp_path) == ["report.json"]


def os_listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_written_at_most_every_second(tmp_path: Path, recorder: Any) -> None:
    path = tmp_path / "report.json"
    made = recorder(*(row(case=f"a/{n}") for n in range(5)), file=OutFile(path, "report"))
    assert (len(read_report(path).results), read_report(path).status) == (0, "incomplete")
    made.write()
    assert read_report(path) == made.report()


def test_a_disk_that_fails_meanwhile_loses_no_row(
    tmp_path: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.telling.recorder.WRITE_SECONDS", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    file = OutFile(folder / "report.json", "report")
    folder.rmdir()
    made = recorder(row(), row(), file=file)
    assert len(made.report().results) == 2
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        made.write()


def test_a_link_stays_a_link(tmp_path: Path, recorder: Any) -> None:
    link, real = tmp_path / "link.json", tmp_path / "real.json"
    real.touch()
    link.symlink_to(real)
    recorder(row(), file=OutFile(link, "report")).write()
    assert link.is_symlink()
    assert read_report(real).status == "conformant"


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none" / "report.json", tmp_path / "file" / "report.json"):
        with pytest.raises(UsageError, match="cannot be written"):
            OutFile(path, "report")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"summary": {"pass": 2, "fail": 0}}, "summary: it says 2 pass, and 1 of its rows do"),
        ({"summary": {"pass": 1, "fail": 0}}, "summary: it says 0 fail, and 1 of its rows do"),
        ({"status": "conformant"}, "status: it says conformant, and a row fails"),
    ],
)
def test_a_report_that_miscounts_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "report.json"
    data = report_of(row(), row("fail", case="a/c")).to_json()
    for name, value in change.items():
        data[name] = {**data[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=message):
        read_report(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[]", r"is not a report of version 1: \[\] is not of type 'object'"),
        ('{"report_version": 2}', "is not a report of version 1"),
        ("[" * 100000, "is not JSON"),
    ],
)
def test_reports_that_are_none(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_report(path)
