"""`mha-conformance vectors export`: the same bytes, with what describes them, and nothing overwritten."""

import hashlib
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from conformance.cli import main
from conformance.resources import vectors_directory
from conformance.vectors.load import INDEX, load_vectors


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outer") / "new" / "vectors"
    assert main(["vectors", "export", str(directory)]) == 0
    return directory


def test_the_bytes_are_those_of_the_suite(exported: Path) -> None:
    index = json.loads((exported / INDEX).read_bytes())
    assert (exported / INDEX).read_bytes() == (vectors_directory() / INDEX).read_bytes()
    for name, digest in index["files"].items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == digest
    assert load_vectors(exported).sha256 == load_vectors().sha256


def test_schema_and_page_lie_beside_them(exported: Path) -> None:
    index = json.loads((exported / INDEX).read_bytes())
    Draft202012Validator(json.loads((exported / "schema.json").read_bytes())).validate(index)
    assert (exported / "vectors.md").read_text("utf-8").startswith("# The vectors\n")
    assert {path.name for path in exported.iterdir()} == {INDEX, "schema.json", "vectors.md", *index["files"]}


def test_an_empty_folder_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "export", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"sha256 of index.json: {load_vectors().sha256}" in out
    assert f"{len(load_vectors().cases)} cases in " in out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for directory, why in ((tmp_path, "is not empty"), (mine, "is not a folder")):
        assert main(["vectors", "export", str(directory)]) == 2
        assert f"{directory} {why}; give a new or an" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "mine"


def test_the_group_alone_is_no_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors"]) == 2
    assert "export" in capsys.readouterr().out
