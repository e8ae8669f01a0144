"""Reports and baselines of anybody: each is read or refused in one line, in bounded time and memory."""

import json
import os
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from damage import damaged, texts, tried, values
from depth import examples
from hypothesis import given
from hypothesis import strategies as st

from conformance import reading
from conformance.errors import UsageError
from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.reading import TooLargeError, read_bytes, strict_json
from conformance.running.baseline import MOST_PROBLEMS, Baseline, Entry, read_baseline
from conformance.telling.report import read_report

# Files


posix = pytest.mark.skipif(os.name != "posix", reason="only POSIX has files that are no files")


@posix
@pytest.mark.parametrize("read", [read_report, read_baseline])
@pytest.mark.covers("CONF-6")
def test_what_is_no_regular_file_is_not_waited_for(read: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        for path, kind in (
            (tmp_path / "pipe", "a pipe"),
            (tmp_path / "link", "a pipe"),
            (tmp_path / "s", "a socket"),
            (tmp_path, "a folder"),
            (Path("/dev/zero"), "a device"),
        ):
            with pytest.raises(UsageError, match=rf"cannot be read: it is {kind}; give a regular file$"):
                read(path)


def test_a_file_of_the_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    assert len(read_bytes(path, 1000)) == 1000
    with pytest.raises(TooLargeError, match="it has more than 999 bytes"):
        read_bytes(path, 999)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize(("read", "kind"), [(read_report, "JSON"), (read_baseline, "TOML")])
def test_a_document_is_utf_8_and_nothing_else(read: Any, kind: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes("baseline_version = 1\nknown = []\n".encode(encoding))
    with pytest.raises(UsageError, match=rf"is not {kind}: it .* UTF-.*; write UTF-8 without"):
        read(path)


# JSON


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 1}', "the name 'a' appears twice"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b"[1e999]", "1e999 is beyond the range of a float"),
        (b"9" * 5000, "Exceeds the limit"),
        (b"[" * 100_000, "it is nested too deep"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'"\xed\xa0\x80"', "byte 1 is not UTF-8"),
        ("{}".encode("utf-8-sig"), "it starts with the byte order mark of UTF-8; write UTF-8 without one"),
        ("{}".encode("utf-16"), "it starts with the byte order mark of UTF-16"),
        ("{}".encode("utf-16-le"), "it looks like UTF-16"),
        ("{}".encode("utf-16-be"), "it looks like UTF-16"),
        ("{}".encode("utf-32"), "it starts with the byte order mark of UTF-32"),
        ("{}".encode("utf-32-be"), "it looks like UTF-16 or UTF-32"),
        (b"", "Expecting value"),
    ],
    ids=range(15),
)
def test_json_that_is_read_in_two_ways_or_none(raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strict_json(raw)


@given(value=values)
@examples(40)
def test_any_other_json_is_read_as_it_is(value: Any) -> None:
    assert strict_json(json.dumps(value).encode()) == value


def test_many_names_one_of_them_twice_take_no_longer_than_others() -> None:
    names = ",".join(f'"{n}":0' for n in range(100_000))
    with pytest.raises(ValueError, match="'7' appears twice"):
        strict_json(f'{{{names},"7":0}}'.encode())


@pytest.mark.parametrize(("pattern", "text"), [("^[a-z]+$", "a\n"), ("^a$", "ab"), ("^x|y$", "yz")])
def test_a_pattern_ends_where_the_text_does(pattern: str, text: str) -> None:
    assert "does not match" in reading.flaw(reading.validator({"pattern": pattern}), text)
    assert reading.flaw(reading.validator({"pattern": pattern}), text[:1]) == ""


def test_a_document_of_a_million_faults_is_refused_at_the_first() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    mixed = [*map(str, range(20_000)), 1]
    assert reading.flaw(reading.validator(schema), mixed) == "[20000]: 1 is not of type 'string'"


# Reports


@pytest.fixture(scope="module")
def report() -> Any:
    row = {
        "case": "a/b", "operation": SDPA, "dtype": "float32", "verdict": "fail", "covers": ["ATT-1"],
        "features": ["mask"], "error_over_bound": 2.5, "rms_over_sigma": "NaN", "grade": None, "message": "off",
        "worst": {"output": "output", "index": [0, 1], "got": 1.0, "expected": "Infinity", "allowed": 0.1},
        "diagnosis": [{"defect": "scale-missing", "explains": 1, "of": 2}], "seconds": 0.5,
        "got": {"output": {"dtype": "float32", "shape": [1], "data": "AAAAAA=="}},
    }  # fmt: skip
    passed = {k: v for k, v in row.items() if k != "got"} | {
        "verdict": "xfail", "dtype": "float16", "known": {"verdict": "fail", "reason": "r", "report": ""},
    }  # fmt: skip
    counts = {
        "pass": 0,
        "fail": 1,
        "error": 0,
        "crash": 0,
        "timeout": 0,
        "unsupported": 0,
        "xfail": 1,
        "xpass": 0,
    }
    options: dict[str, Any] = dict.fromkeys(("profile", "op", "device", "accuracy", "k"))
    return {
        "report_version": 1, "suite_version": "1", "spec_version": "1.1", "vectors_sha256": "0" * 64,
        "target": {"name": "x", "version": "1", "source": "x.py", "accuracy": "eager"},
        "environment": {"numpy": "2"}, "command": ["run", "x"], "status": "non-conformant", "summary": counts,
        "features": {"mask": {"status": "non-conformant", "pass": 0, "fail": 2}},
        "profiles": {"core": "incomplete"}, "untested_requirements": ["ATT-2"], "results": [row, passed],
        "options": options | {"dtype": [], "feature": [], "shard": "1/2", "fresh": 7},
        "baseline": {"path": "k.toml", "problems": ["k.toml: a/b: stale"]},
    }  # fmt: skip


@given(data=st.data())
@examples(60)
@pytest.mark.covers("CONF-6", "CONF-8")
def test_a_damaged_report_is_refused_in_a_line(
    report: Any, data: st.DataObject, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("r") / "r.json"
    path.write_text(data.draw(damaged(report)), "utf-8")
    found, refused = tried(UsageError, read_report, path)
    if not refused:
        path.write_text(json.dumps(found.to_json(), allow_nan=False))
        assert read_report(path).to_json() == found.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["results"].append(dict(r["results"][0])), "results: a/b float32 appears twice"),
        (lambda r: r["results"][0].update(seconds=10**400), "too large"),
        (lambda r: r["options"].update(shard="one"), "'one' does not match"),
        (lambda r: r["options"].update(shard="0/0"), "'0/0' does not match"),
        (lambda r: r["options"].update(fresh=-1), "-1 is less than the minimum"),
        (lambda r: r.update(vectors_sha256="0" * 64 + "\n"), "does not match"),
        (lambda r: r.update(results=[{}] * 100_000), "is a required property"),
    ],
)
def test_reports_that_lie(report: Any, tmp_path: Path, change: Any, message: str) -> None:
    edited = json.loads(json.dumps(report))
    change(edited)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(edited))
    with pytest.raises(UsageError, match=message):
        read_report(path)


# Baselines

DOTS = ".".join("a" * 100_000) + " = 1"


@pytest.mark.parametrize("text", [DOTS, f"[{DOTS[:-4]}]", "a = " + "[" * 100_000, "x = {" * 5000])
def test_toml_that_would_take_hours(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not TOML"):
        read_baseline(path)


KNOWN = '[[known]]\ncase = "a/b"\ndtypes = ["float32"]\nverdicts = ["fail"]\nreason = "r"\nreport = "https://x.org/1"\n'


@st.composite
def baselines(draw: Any) -> str:
    """The text of a baseline in which a word was replaced, or any TOML of values."""
    text = f"baseline_version = 1\n{KNOWN}{KNOWN}"
    if draw(st.booleans()):
        words = text.split(" ")
        words[draw(st.integers(0, len(words) - 1))] = draw(
            st.sampled_from(
                ["1", "[]", "{}", "nan", "1979-05-27", "true", '"x"', "[1, [2]]", "=", "", '"\\ud800"']
            )
            | texts
        )
        return " ".join(words)
    place = draw(st.integers(0, len(text)))
    return text[:place] + draw(texts) + text[place + draw(st.integers(0, 5)) :]


@given(text=baselines())
@examples(60)
@pytest.mark.covers("CONF-14", "CONF-6")
def test_a_damaged_baseline_is_refused_in_a_line(text: str, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("k") / "k.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    found, refused = tried(UsageError, read_baseline, path)
    if not refused:
        row = Row("a/b", SDPA, "float32", "fail", (), ())
        assert found.seen(row).judged == "fail"
        assert len(tomllib.loads(path.read_text())["known"]) == len(found.entries)
        found.problems([row], {"a/b": ("float32",)}, [row.key])


@pytest.mark.covers("CONF-15")
def test_many_entries_take_no_longer_each() -> None:
    entries = (*[Entry("a/b", "w")] * 50_000, *[Entry(f"a/{n}", "w") for n in range(50_000)])
    known = Baseline("k.toml", entries)
    problems = known.problems([], {"a/b": ("float32",)}, [])
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1] == "k.toml: there are more"
    assert known.seen(Row("a/49999", SDPA, "float32", "fail", (), ())).verdict == "xfail"
