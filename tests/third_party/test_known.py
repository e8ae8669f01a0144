import json
import tomllib

import known
import pytest
import table

pytestmark = pytest.mark.session("third_party")

REPORT = {
    "target": {"source": "some", "name": "some", "version": "1"},
    "results": [
        {
            "case": "a/b",
            "dtype": "float32",
            "verdict": "fail",
            "message": "is 0, wanted 1",
            "features": ["mask"],
        },
        {
            "case": "a/b",
            "dtype": "float64",
            "verdict": "fail",
            "message": "is 0, wanted 1",
            "features": ["mask"],
        },
        {"case": "a/c", "dtype": "float64", "verdict": "pass", "message": "", "features": []},
        {"case": "a/d", "dtype": "float64", "verdict": "unsupported", "message": "", "features": ["gqa"]},
    ],
}


def reason(**given):
    text = {"targets": ("some",), "cases": known.re.compile("a/b"), "message": known.re.compile("wanted 1")}
    return known.Reason(**{**text, "text": "why", **given})


def test_a_failure_is_written_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "KNOWN", tmp_path)
    assert known.write(REPORT, [reason()]) == []
    entry = {"case": "a/b", "dtypes": ["float32", "float64"], "verdicts": ["fail"], "reason": "why"}
    assert tomllib.loads((tmp_path / "some.toml").read_text()) == {"baseline_version": 1, "known": [entry]}


def test_a_failure_without_a_reason_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "KNOWN", tmp_path)
    for other in (
        reason(targets=("other",)),
        reason(cases=known.re.compile("b")),
        reason(dtypes=("float16",)),
    ):
        assert known.write(REPORT, [other]) == ["some a/b float32 float64: is 0, wanted 1"]
    assert known.write(REPORT, [reason(message=known.re.compile("NaN"))])


def test_every_reason_is_used_and_every_report_is_an_address():
    files = {
        p.stem: tomllib.loads(p.read_text())["known"]
        for p in known.KNOWN.glob("*.toml")
        if p != known.REASONS
    }
    used = {(name, entry["reason"]) for name, entries in files.items() for entry in entries}
    for given in known.reasons():
        assert not given.report or given.report.startswith("https://")
        for target in set(given.targets) & set(files):
            assert (target, given.text) in used, f"{target} no longer fails for this: {given.text}"
        assert set(given.targets) <= set(files), f"{given.targets} have no file"


def test_the_table_counts_by_feature():
    lines = table.table([json.loads(json.dumps(REPORT))]).splitlines()
    assert lines[0] == "| passes / known failures | some 1 |"
    assert "| every case | 1 **2 fail** |" in lines
    assert "| mask | 0 **2 fail** |" in lines
    assert "| no feature | 1 |" in lines
    assert "| gqa | - |" in lines
    assert lines[-1] == "| unsupported | 1 |"


def test_readme_says_what_of_serving_works(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "ROOT", tmp_path)
    (tmp_path / "spec").mkdir()
    for page in ("README.md", "spec/found.md"):
        (tmp_path / page).write_text("before\n<!-- libraries -->\nold\n<!-- end of libraries -->\nafter\n")
    row = REPORT["results"][0]
    packed = [{**row, "verdict": verdict, "features": ["packed"]} for verdict in ("pass", "pass", "xfail")]
    segments = {**row, "verdict": "pass", "features": ["segments", "mask"]}
    ggml = {"target": {"source": "ggml", "name": "ggml", "version": "1"}, "results": [*packed, segments]}
    gqa = {"target": {"source": "onnxruntime-gqa", "name": "gqa", "version": "2"}, "results": []}
    table.write([REPORT, ggml, gqa])
    front = (tmp_path / "README.md").read_text().splitlines()
    assert front[1:3] == ["<!-- libraries -->", "| pass / known to fail | gqa 2 | ggml 1 |"]
    assert front[-3] == "| serving | - | segments 1, packed 2 / **1** |"
    assert front[-1] == "after"
    behind = (tmp_path / "spec/found.md").read_text()
    assert "| some 1 | ggml 1 | gqa 2 |" in behind
    assert "| packed | - | 2 / **1** | - |" in behind
