"""`--html` of `run` and `report`, and `html=` of `conformance.run`: where the page goes, and what stops it."""

from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance.cli import main
from conformance.errors import UsageError


def attention(query: Any, key: Any, value: Any) -> Any:
    return value


@pytest.fixture(autouse=True)
def _vectors(vectors_are: Any, make_vectors: Any, make_case: Any) -> None:
    vectors_are(make_vectors(make_case()))


def test_run_and_report_write_the_same_page(tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "wrong.py"
    target.write_text("def attention(query, key, value):\n    return value\n")
    first, second, report = (str(tmp_path / name) for name in ("run.html", "report.html", "run.json"))
    assert (
        main(["run", f"{target}:attention", "--in-process", "-q", "--report", report, "--html", first]) == 1
    )
    assert main(["report", report, "--html", second]) == 0
    capsys.readouterr()
    page = Path(first).read_text("utf-8")
    assert page == Path(second).read_text("utf-8")
    assert "core/plain" in page
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        "report.html",
        "run.html",
        "run.json",
        "wrong.py",
    ]


def test_from_python(tmp_path: Path) -> None:
    conformance.run(attention, html=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path, capsys: Any) -> None:
    nowhere = str(tmp_path / "none" / "page.html")
    with pytest.raises(UsageError, match=r"page .* cannot be written"):
        conformance.run(attention, html=nowhere)
    assert main(["run", "numpy", "--html", nowhere]) == 2
    assert main(["report", str(tmp_path / "none.json"), "--html", nowhere]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("none is not a folder; create it first") == 2
